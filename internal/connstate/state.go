package connstate

import (
	"fmt"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// Phase is the phase of a connection.
type Phase string

const (
	// Disconnected means: there is no connection, for the given Reason.
	Disconnected Phase = "Disconnected"
	// Connecting means: a connect is in progress. The Reason is that of the last disconnect.
	Connecting Phase = "Connecting"
	// Connected means: there is a connection, and the API server reported its identity.
	Connected Phase = "Connected"
)

// Reason is one word for why an extension is not connected, or "" when the extension is connected.
//
// To add a Reason: declare it here. Re-export it in accessor/errors.go and in
// clustercache/clustercache.go. Add its row to docs/operations.md. If a provider of credentials
// causes it, add the error to credential/errors.go, and the case to reasonOf and TestReasonOf in
// package accessor. If the lifecycle machine decides on it, add it to the reasons in
// lifecycle/world_test.go.
type Reason string

const (
	// NotStarted means: there is no result of a connect to report. The extension is unknown here
	// (not seen yet, deleted, or filtered out), or its credential is being read, or the first
	// connect is in progress. Or the replica is not the leader, or the manager has stopped.
	NotStarted Reason = "NotStarted"
	// InvalidReference means: the extension names no ServiceAccount or Secret, or none that can
	// exist.
	InvalidReference Reason = "InvalidReference"
	// ServiceAccountNotFound means: the ServiceAccount does not exist, or was recreated a moment
	// ago.
	ServiceAccountNotFound Reason = "ServiceAccountNotFound"
	// TokenRequestFailed means: the API server issued no token.
	TokenRequestFailed Reason = "TokenRequestFailed"
	// InvalidCredential means: the provided data cannot be used as a credential.
	InvalidCredential Reason = "InvalidCredential"
	// NotAllowed means: the extension may not act as that ServiceAccount, or use that Secret.
	NotAllowed Reason = "NotAllowed"
	// OperatorForbidden means: the host operator itself lacks the permission to list and watch the
	// extensions, or the ServiceAccounts or the Secrets that they name. The message has the missing
	// permission and the role to bind.
	OperatorForbidden Reason = "OperatorForbidden"
	// UnauthorizedCredential means: the API server does not accept the credential, or refuses the
	// impersonation.
	UnauthorizedCredential Reason = "Unauthorized"
	// IdentityMismatch means: the API server accepts the credential, but as another identity. Or
	// the extension now refers to another identity, or another credential, than its connection
	// used.
	IdentityMismatch Reason = "IdentityMismatch"
	// Unreachable means: the API server does not answer.
	Unreachable Reason = "Unreachable"
	// ProbeFailed means: the API server answers, but does not report the identity.
	ProbeFailed Reason = "ProbeFailed"
	// Filtered means: the extension does not match Options.WatchFilterValue or Options.Filter any
	// more. Only earlier handles return this reason; the extension itself is unknown then.
	Filtered Reason = "Filtered"
	// Deleted means: the extension is gone. Only earlier handles return this reason; the extension
	// itself is unknown then.
	Deleted Reason = "Deleted"
)

// ReasonOfVerdict returns the reason with which a probe that was not Valid ends or prevents a
// connection.
func ReasonOfVerdict(verdict Verdict) Reason {
	switch verdict {
	case Unauthorized:
		return UnauthorizedCredential
	case Silent:
		return Unreachable
	default:
		return ProbeFailed
	}
}

// ErrNotConnected is in the chain of every error that occurs because an extension is not connected,
// for errors.Is.
var ErrNotConnected = errors.New("not connected")

// NotConnectedError has the extension that is not connected, the reason, and since when. Values are
// shared: do not change them.
type NotConnectedError struct {
	Extension types.NamespacedName
	Reason    Reason
	Since     time.Time // zero if the extension is unknown
	Cause     error     // the last failure, nil if there was none
}

// Error implements error. The text never contains a secret.
func (e *NotConnectedError) Error() string {
	if e.Cause == nil {
		return fmt.Sprintf("extension %s: %s (%s)", KeyString(e.Extension), ErrNotConnected, e.Reason)
	}
	return fmt.Sprintf("extension %s: %s (%s): %s", KeyString(e.Extension), ErrNotConnected, e.Reason, ErrorText(e.Cause))
}

// Is makes errors.Is(err, ErrNotConnected) true.
func (e *NotConnectedError) Is(target error) bool { return target == ErrNotConnected }

// Unwrap returns the cause.
func (e *NotConnectedError) Unwrap() error { return e.Cause }

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
