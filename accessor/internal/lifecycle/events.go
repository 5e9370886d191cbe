package lifecycle

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// The machine never uses an ID twice; zero identifies nothing.
type (
	// CredentialID identifies a credential that the driver opened for the machine.
	CredentialID uint64
	// AttemptID identifies a connect, probe or verify.
	AttemptID uint64
)

// TargetID identifies a target that the driver acquired. The driver never uses an ID for two
// targets; zero identifies nothing.
type TargetID uint64

// Event is an input of the machine. See [Machine.Step].
type Event interface{ isEvent() }

// Resolved reports that the reconciler has resolved, or failed to resolve, the identity that the
// extension connects as. Only this event starts attempts.
type Resolved struct {
	// Generation is the extension's metadata.generation.
	Generation int64
	// Resolution is the result. If Err is set, only Source, ServiceAccount and KeepCurrent count.
	Resolution Resolution
	// Err states why resolving failed, nil if it succeeded. ReasonOf says what that means.
	Err error
	// Target is the target that the driver acquired because Resolution.Key differs from
	// [Machine.CredentialKey]; otherwise zero. TargetErr states why the driver could not acquire
	// the target.
	Target    TargetID
	TargetErr error
}

// Resolution holds the fields of a credential.Resolution that decisions need. Resolution holds no
// secret.
type Resolution struct {
	Key            string
	Version        string
	Source         string
	ServiceAccount types.NamespacedName
	KeepCurrent    bool
	Impersonated   bool
	Expected       connstate.Identity
	// Reference is what the extension names, with the provider of the credential.
	Reference string
	// ObjectVersion is the version of the extension that the Resolution is for, where only the
	// whole extension determines the credential. It is empty where Source does.
	ObjectVersion string
}

// AttemptFinished reports that an attempt has an answer.
type AttemptFinished struct {
	Attempt AttemptID
	// Asked is when the attempt sent its review. If nothing was sent, Asked is when the attempt
	// began to prepare the credential.
	Asked  time.Time
	Answer Answer
}

// Answer is the result of an attempt.
type Answer struct {
	Verdict  connstate.Verdict
	Identity connstate.Identity // as stated by the server; set if the verdict is Valid
	Err      error              // nil exactly if the verdict is Valid
	// RetryAfter is after which time the server wants to be asked again, 0 if it did not say. It is
	// set only if the verdict is Throttled.
	RetryAfter time.Duration
	// NotSent is the reason why the credential itself failed, so that no review was sent; "" if a
	// review was sent.
	NotSent connstate.Reason
	// Own is set if the answer is about the user whose credential impersonates, and not about the
	// identity.
	Own bool
	// OwnConnections is set if the request used the credential's own TCP connections.
	OwnConnections bool
}

// RequestUnauthorized reports a doubt about the connection that Attempt created: the server
// answered one of its requests with 401, or a sibling reported that the server rejects the
// identity.
type RequestUnauthorized struct{ Attempt AttemptID }

// ProbeRequested reports that the target is silent, and that this connection must probe on behalf
// of all.
type ProbeRequested struct{ Target TargetID }

// TargetDown reports that the target did not answer any member for FailureThreshold probes.
type TargetDown struct {
	Target TargetID
	Err    error
}

// RetryAt reports that a connect that waits because the target was silent may begin at At already.
type RetryAt struct {
	Target TargetID
	At     time.Time
}

// AccessChanged reports that the connection's cache gained or lost access to a kind.
type AccessChanged struct{}

// Looked reports nothing but what the driver observes.
type Looked struct{}

// Removed reports that there is to be no connection for the extension any more.
type Removed struct {
	Why   Removal
	Cause error // with Stopped
}

// Removal is why there is to be no connection for an extension any more.
type Removal int8

// The removals.
const (
	Deleted  Removal = iota // the extension does not exist any more
	Filtered                // the host operator does not want it
	Stopped                 // the manager stops
)

// LeaseEnded reports that the term in which this replica may act for the extension has ended.
type LeaseEnded struct{ Cause error }

// GiveUp reports that another replica is to have the extension.
type GiveUp struct{ Cause error }

// RequestsAnswered reports that no request is under way, after RefuseRequests.
type RequestsAnswered struct{}

// NoMoreTime reports that AwaitAnswers is over, or that the caller who gives the extension up waits
// no longer.
type NoMoreTime struct{}

// TasksEnded reports that AwaitTasks is over. Clean is false if event handlers still run.
type TasksEnded struct{ Clean bool }

func (Resolved) isEvent()            {}
func (AttemptFinished) isEvent()     {}
func (RequestUnauthorized) isEvent() {}
func (ProbeRequested) isEvent()      {}
func (TargetDown) isEvent()          {}
func (RetryAt) isEvent()             {}
func (AccessChanged) isEvent()       {}
func (Looked) isEvent()              {}
func (Removed) isEvent()             {}
func (LeaseEnded) isEvent()          {}
func (GiveUp) isEvent()              {}
func (RequestsAnswered) isEvent()    {}
func (NoMoreTime) isEvent()          {}
func (TasksEnded) isEvent()          {}
