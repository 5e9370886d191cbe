package monitor

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
)

// The machine never uses an ID twice. Zero means none.
type (
	// QuestionID identifies a question to the API server.
	QuestionID uint64
	// LifeID identifies the life of an informer.
	LifeID uint64
)

// Event is an input of the machine. See [Machine.Step].
type Event interface{ isEvent() }

// Answers to questions.
type (
	// Mapped is the answer of discovery: the kind's resource, or an error.
	Mapped struct {
		Question QuestionID
		Mapping  *meta.RESTMapping
		Err      error // meta.IsNoMatchError if the kind is not served
	}
	// Reviewed is the result of an access review.
	Reviewed struct {
		Question QuestionID
		Verdict  Verdict
		ListOnly bool  // the review was for list alone, because watch is denied
		Err      error // set for a verdict other than Allowed
	}
	// Readied is the result of a readiness check of the API server.
	Readied struct {
		Question QuestionID
		Ready    bool // false only if the API server reports that it is not ready
	}
)

// Reports of an informer.
type (
	// InformerStartFailed reports that the informer could not be started.
	InformerStartFailed struct {
		Life LifeID
		Err  error
	}
	// InformerSynced reports that the informer has synced.
	InformerSynced struct{ Life LifeID }
	// Served reports that the API server served a list, or began a watch.
	Served struct{ Life LifeID }
	// WatchBegan reports that the API server answers a watch. Lists says whether a list comes first.
	WatchBegan struct {
		Life  LifeID
		Lists bool
	}
	// WatchListed reports that the API server has marked the end of the list in a watch.
	WatchListed struct{ Life LifeID }
	// WatchEnded reports that a watch has ended after Lasted. Stopped says that the informer ended
	// it. Else Err is why, nil if the API server ended it without an error, and Early says that it
	// was asked to let the watch last longer.
	WatchEnded struct {
		Life    LifeID
		Lasted  time.Duration
		Early   bool
		Stopped bool
		Err     error
	}
	// Failed reports that a request failed with an error that may be temporary.
	Failed struct {
		Life LifeID
		Err  error
	}
	// Refused reports that the API server answered a request with 403 or 404.
	Refused struct {
		Life LifeID
		Err  error
		Sent time.Time // when the request was sent
		At   time.Time // when the first refusal came that was not reported yet
	}
)

// Events from other sources.
type (
	// AccessMayHaveChanged reports a change of an RBAC object that concerns the identity.
	AccessMayHaveChanged struct{}
	// EventsWatched reports whether all such changes are reported. Until then they are not. Latest is
	// when the watcher last learned of a change that concerns any identity, or began to watch; zero
	// for never. A scope that starts later receives no AccessMayHaveChanged for that change.
	EventsWatched struct {
		Watched bool
		Latest  time.Time
	}
	// Read reports that a reader asked for a kind that is not served.
	Read struct{}
	// Tick reports that the deadline has come.
	Tick struct{}
	// Stopped reports that nothing needs the scope any more. Stopped is the last event that has an
	// effect.
	Stopped struct{}
)

func (Mapped) isEvent()               {}
func (Reviewed) isEvent()             {}
func (Readied) isEvent()              {}
func (InformerStartFailed) isEvent()  {}
func (InformerSynced) isEvent()       {}
func (Served) isEvent()               {}
func (WatchBegan) isEvent()           {}
func (WatchListed) isEvent()          {}
func (WatchEnded) isEvent()           {}
func (Failed) isEvent()               {}
func (Refused) isEvent()              {}
func (AccessMayHaveChanged) isEvent() {}
func (EventsWatched) isEvent()        {}
func (Read) isEvent()                 {}
func (Tick) isEvent()                 {}
func (Stopped) isEvent()              {}

// Verdict is the API server's answer about the identity's access.
type Verdict int

const (
	// Allowed means that the API server allows access.
	Allowed Verdict = iota
	// Denied means that the API server denies access, and reports that it is ready. A single denial
	// is not trusted where access has worked.
	Denied
	// DeniedReadinessUnknown means that the API server denies access, and does not report whether
	// it is ready.
	DeniedReadinessUnknown
	// DeniedUnready means that the API server denies access, and reports that it is not ready.
	DeniedUnready
	// Unaskable means that the identity may not create access reviews. Only requests of an informer
	// can show whether it has access.
	Unaskable
	// Unanswered means that the API server failed, or did not answer.
	Unanswered
)

// IsDenial reports whether the API server said no, whatever that is worth.
func (v Verdict) IsDenial() bool {
	return v == Denied || v == DeniedReadinessUnknown || v == DeniedUnready
}
