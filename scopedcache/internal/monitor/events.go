package monitor

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
)

// QuestionID names a question to the API server, LifeID the life of an informer. The machine never
// uses an ID twice; zero names none.
type (
	QuestionID uint64
	LifeID     uint64
)

// Event is what happened. See [Machine.Step].
type Event interface{ isEvent() }

// Answers to questions.
type (
	// Mapped says that discovery found the kind's resource, or not.
	Mapped struct {
		Question QuestionID
		Mapping  *meta.RESTMapping
		Err      error // meta.IsNoMatchError if the kind is not served
	}
	// Reviewed says that the API server answered whether the identity has access.
	Reviewed struct {
		Question QuestionID
		Verdict  Verdict
		ListOnly bool  // only list was asked for, because watch is denied
		Err      error // of a verdict other than Allowed
	}
	// Readied says that the API server said whether it is ready.
	Readied struct {
		Question QuestionID
		Ready    bool // false only if it says that it is not
	}
)

// What an informer reports.
type (
	// InformerStartFailed says that the informer could not be started.
	InformerStartFailed struct {
		Life LifeID
		Err  error
	}
	// InformerSynced says that the informer has synced.
	InformerSynced struct{ Life LifeID }
	// Served says that the API server served a list, or began a watch.
	Served struct{ Life LifeID }
	// Failed says that a request failed in a way that may pass.
	Failed struct {
		Life LifeID
		Err  error
	}
	// Refused says that a request was refused (403), or what it asked for does not exist (404).
	Refused struct {
		Life LifeID
		Err  error
		Sent time.Time // when the request was sent
		At   time.Time // when the first such refusal came that was not reported yet
	}
)

// What the driver hears from others.
type (
	// AccessMayHaveChanged says that an RBAC object that concerns the identity changed.
	AccessMayHaveChanged struct{}
	// Read says that a reader asked for what is not served.
	Read struct{}
	// Tick says that the deadline has come.
	Tick struct{}
	// Stopped says that nothing needs the scope any more. It is the last event that has an effect.
	Stopped struct{}
)

func (Mapped) isEvent()               {}
func (Reviewed) isEvent()             {}
func (Readied) isEvent()              {}
func (InformerStartFailed) isEvent()  {}
func (InformerSynced) isEvent()       {}
func (Served) isEvent()               {}
func (Failed) isEvent()               {}
func (Refused) isEvent()              {}
func (AccessMayHaveChanged) isEvent() {}
func (Read) isEvent()                 {}
func (Tick) isEvent()                 {}
func (Stopped) isEvent()              {}

// Verdict is what the API server says about the identity's access.
type Verdict int

const (
	// Allowed: the server said yes.
	Allowed Verdict = iota
	// Denied: the server said no, and that it is ready. A single denial is not trusted where access
	// has worked.
	Denied
	// DeniedReadinessUnknown: the server said no, and does not say whether it is ready.
	DeniedReadinessUnknown
	// DeniedUnready: the server said no, and that it is not ready.
	DeniedUnready
	// Unaskable: the identity may not ask. Access has to be tried.
	Unaskable
	// Unanswered: the server failed, or did not answer.
	Unanswered
)

// IsDenial reports whether the API server said no, whatever that is worth.
func (v Verdict) IsDenial() bool {
	return v == Denied || v == DeniedReadinessUnknown || v == DeniedUnready
}
