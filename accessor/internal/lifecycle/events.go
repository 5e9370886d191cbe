package lifecycle

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// CredentialID names a credential that the machine had opened. AttemptID names a connect, probe or
// verify. The machine never uses an ID twice; zero names nothing.
type (
	CredentialID uint64
	AttemptID    uint64
)

// TargetID names a target that the driver acquired. The driver never uses an ID for two targets;
// zero names nothing.
type TargetID uint64

// Event is what happened. See [Machine.Step].
type Event interface{ isEvent() }

// Resolved says that the reconciler resolved what the extension is to connect as. Only this event
// starts attempts.
type Resolved struct {
	// Generation is the extension's metadata.generation.
	Generation int64
	// Resolution is the result. If Err is set, only Source, ServiceAccount and KeepCurrent count.
	Resolution Resolution
	// Reason and Err say why resolving failed. Err is nil if resolving succeeded.
	Reason connstate.Reason
	Err    error
	// Target is the target that the driver acquired, because Resolution.Key differs from
	// [Machine.CredentialKey]; else zero. TargetErr says why the driver could not acquire it.
	Target    TargetID
	TargetErr error
}

// Resolution is what decisions need of a credential.Resolution. It holds no secret.
type Resolution struct {
	Key            string
	Version        string
	Source         string
	ServiceAccount types.NamespacedName
	KeepCurrent    bool
	Impersonated   bool
	Expected       connstate.Identity
}

// AttemptFinished says that an attempt has an answer.
type AttemptFinished struct {
	Attempt AttemptID
	// Asked is when the attempt sent its question, or when it began to prepare the credential if
	// nothing was sent.
	Asked  time.Time
	Answer Answer
}

// Answer is what an attempt found.
type Answer struct {
	Verdict  connstate.Verdict
	Identity connstate.Identity // as the server states it; set if the verdict is Valid
	Err      error              // nil exactly if the verdict is Valid
	// NotSent is why the credential itself failed, so that the server was not asked; "" if it was.
	NotSent connstate.Reason
	// OwnConnections is set if the request went over TCP connections of the credential's own.
	OwnConnections bool
}

// RequestUnauthorized says that a request of the connection that Attempt made was answered 401.
type RequestUnauthorized struct{ Attempt AttemptID }

// ProbeRequested says that the target is silent, and this connection is to probe on behalf of all.
type ProbeRequested struct{ Target TargetID }

// TargetDown says that the target did not answer anybody for FailureThreshold probes.
type TargetDown struct {
	Target TargetID
	Err    error
}

// RetryAt says that a connect that waits because the target was silent may be tried at At already.
type RetryAt struct {
	Target TargetID
	At     time.Time
}

// AccessChanged says that the connection's cache gained or lost access to a kind.
type AccessChanged struct{}

// Removed says that the extension is gone, or the manager stops. It is the last event that has an
// effect, beside discarding late answers.
type Removed struct {
	Reason connstate.Reason
	Cause  error
}

func (Resolved) isEvent()            {}
func (AttemptFinished) isEvent()     {}
func (RequestUnauthorized) isEvent() {}
func (ProbeRequested) isEvent()      {}
func (TargetDown) isEvent()          {}
func (RetryAt) isEvent()             {}
func (AccessChanged) isEvent()       {}
func (Removed) isEvent()             {}
