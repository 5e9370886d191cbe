package connstate

import (
	"fmt"
	"net/http"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// Phase is the phase of a connection.
type Phase string

const (
	// PhaseDisconnected means: there is no connection, for the given Reason.
	PhaseDisconnected Phase = "Disconnected"
	// PhaseConnecting means: a connect is in progress, or waits for a moment because it was denied.
	// The Reason is that of the last disconnect, or of that denial.
	PhaseConnecting Phase = "Connecting"
	// PhaseConnected means: there is a connection, and the API server reported its identity.
	PhaseConnected Phase = "Connected"
)

// Reason is one word for why an extension is not connected, or "" when the extension is connected.
//
// To add a Reason: declare it here. Export it in clustercache/state.go. Say what to do about it in
// docs/operations.md, whose table has the order of the constants below. Only
// accessor/internal/lifecycle decides on it:
//
//   - If an error means the Reason: declare the error in credential/errors.go if authors of
//     providers return it, or else in internal/identity/errors.go, and add it to ReasonOf in
//     lifecycle/reasons.go, with a row in its test.
//   - If the machine concludes the Reason: emit it in a step, such as those of
//     lifecycle/answers.go, and add it to the reasons of the exploration in
//     lifecycle/world_test.go.
//
// Then run make generate. If the Reason is the fault of a tenant, deploy/observability/rules.yaml
// and the list of such Reasons in docs/operations.md name it, too.
type Reason string

const (
	// ReasonNotStarted means: there is no result of a connect to report. The extension is unknown
	// here (not seen yet, deleted, or filtered out), or its credential is being read, or the first
	// connect is in progress. Or the replica is not the leader, or the manager has stopped.
	ReasonNotStarted Reason = "NotStarted"
	// ReasonInvalidReference means: the extension names no ServiceAccount or Secret, or none that
	// can exist.
	ReasonInvalidReference Reason = "InvalidReference"
	// ReasonServiceAccountNotFound means: the ServiceAccount does not exist, or was recreated a
	// moment ago.
	ReasonServiceAccountNotFound Reason = "ServiceAccountNotFound"
	// ReasonTokenRequestFailed means: the API server issued no token.
	ReasonTokenRequestFailed Reason = "TokenRequestFailed"
	// ReasonInvalidCredential means: the provided data cannot be used as a credential.
	ReasonInvalidCredential Reason = "InvalidCredential"
	// ReasonNotAllowed means: the extension may not act as that ServiceAccount, or use that Secret.
	ReasonNotAllowed Reason = "NotAllowed"
	// ReasonOperatorForbidden means: the host operator itself lacks the permission to list and
	// watch the extensions, or the ServiceAccounts or the Secrets that they name. The message has
	// the missing permission and the rule that grants it.
	ReasonOperatorForbidden Reason = "OperatorForbidden"
	// ReasonUnauthorized means: the API server does not accept the credential, or refuses the
	// impersonation.
	ReasonUnauthorized Reason = "Unauthorized"
	// ReasonStale means: the connection is not for the object that the caller read, but for another
	// object of that name, or for another reference to a ServiceAccount or Secret. Only views that
	// For returns have this reason. Wait for the next event: the caller's copy of the object, or
	// the connection, usually changes soon.
	ReasonStale Reason = "Stale"
	// ReasonIdentityMismatch means: the API server accepts the credential, but as another identity.
	// Or the extension now refers to another identity, another credential, or another version of its
	// cache options than its connection used.
	ReasonIdentityMismatch Reason = "IdentityMismatch"
	// ReasonNotLeading means: this replica does not hold the lease that its requests need. Another
	// replica may serve the extension. Handles from before end when the lease does.
	ReasonNotLeading Reason = "NotLeading"
	// ReasonNotOwned means: replicas share the extensions, and this one does not have the
	// extension: another one has it, or none has it yet.
	ReasonNotOwned Reason = "NotOwned"
	// ReasonUnreachable means: the API server does not answer.
	ReasonUnreachable Reason = "Unreachable"
	// ReasonProbeFailed means: the API server answers, but does not report the identity.
	ReasonProbeFailed Reason = "ProbeFailed"
	// ReasonThrottled means: the API server, or the one that issues tokens, answers and refuses
	// requests for now (429, or 503 with Retry-After).
	ReasonThrottled Reason = "Throttled"
	// ReasonFiltered means: the extension does not match Options.WatchFilterValue or Options.Filter
	// any more. Only earlier handles return this reason; the extension itself is unknown then.
	ReasonFiltered Reason = "Filtered"
	// ReasonDeleted means: the extension is gone. Only earlier handles return this reason; the
	// extension itself is unknown then.
	ReasonDeleted Reason = "Deleted"
)

// ReasonOfVerdict returns the reason with which a probe that was not Valid ends or prevents a
// connection.
func ReasonOfVerdict(verdict Verdict) Reason {
	switch verdict {
	case Unauthorized:
		return ReasonUnauthorized
	case Silent:
		return ReasonUnreachable
	case Throttled:
		return ReasonThrottled
	default:
		return ReasonProbeFailed
	}
}

// Pending reports whether there is no result of a connect: the first one is under way, or the
// extension names no credential, or not yet.
func (r Reason) Pending() bool { return r == ReasonNotStarted }

// ErrNotConnected is in the chain of every error that occurs because an extension is not connected,
// for errors.Is.
var ErrNotConnected = errors.New("not connected")

// ErrMistake is in the chain of errors that no time heals, because the caller asks for what cannot
// be.
var ErrMistake = errors.New("mistake of the caller")

// mistake is an error with ErrMistake in its chain, and without it in its text.
type mistake struct{ error }

// Mistake returns an ErrMistake with that text.
func Mistake(format string, arguments ...any) error {
	return mistake{errors.Errorf(format, arguments...)}
}

// Is makes errors.Is(err, ErrMistake) true.
func (mistake) Is(target error) bool { return target == ErrMistake }

// NotConnectedError has the extension that is not connected, the reason, and since when. Values are
// shared: do not change them.
type NotConnectedError struct {
	Extension types.NamespacedName
	Reason    Reason
	Since     time.Time // zero if the extension is unknown
	Err       error     // the last failure, nil if there was none
}

// Error implements error. The text never contains a secret.
func (e *NotConnectedError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("extension %s: %s (%s)", KeyString(e.Extension), ErrNotConnected, e.Reason)
	}
	return fmt.Sprintf("extension %s: %s (%s): %s", KeyString(e.Extension), ErrNotConnected, e.Reason, ErrorText(e.Err))
}

// Is makes errors.Is(err, ErrNotConnected) true.
func (e *NotConnectedError) Is(target error) bool { return target == ErrNotConnected }

// Cause returns ErrNotConnected, so that errors.Cause of github.com/pkg/errors finds it.
func (e *NotConnectedError) Cause() error { return ErrNotConnected }

// Status makes the error a 503 for package apierrors. Err may have the status of another request,
// such as the 404 of a TokenRequest. Without Status, apierrors.IsNotFound would report that the
// object that the caller wants does not exist.
func (e *NotConnectedError) Status() metav1.Status {
	return metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusServiceUnavailable,
		Reason:  metav1.StatusReasonServiceUnavailable,
		Message: e.Error(),
	}
}

// ReportedElsewhere reports whether the caller must leave the status of the extension alone: a
// later Reconcile with a newer object writes it, or the replica that has the extension.
func (e *NotConnectedError) ReportedElsewhere() bool {
	return e.Reason == ReasonStale || e.Reason == ReasonNotOwned
}

// Unwrap returns Err.
func (e *NotConnectedError) Unwrap() error { return e.Err }

// KeyString formats a key as "namespace/name", or "name" where there is no namespace.
func KeyString(key types.NamespacedName) string {
	if key.Namespace == "" {
		return key.Name
	}
	return key.String()
}

// ErrorText returns the error's text, or "" for nil. ErrorText shortens the text, because a server
// may have written it.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	return untrusted.Shorten(err.Error())
}
