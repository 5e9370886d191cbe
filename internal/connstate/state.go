package connstate

import (
	"fmt"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// Phase is where a connection stands.
type Phase string

const (
	// Disconnected: there is no connection. The Reason says why.
	Disconnected Phase = "Disconnected"
	// Connecting: a connect is under way. The Reason is that of the last disconnect.
	Connecting Phase = "Connecting"
	// Connected: there is a connection, and the API server stated whose.
	Connected Phase = "Connected"
)

// Reason says in one word why an extension is not connected. It is "" when the extension is
// connected.
type Reason string

const (
	// NotStarted: nothing was tried. The extension is unknown here (not seen yet, deleted, or
	// filtered out), or the replica does not lead, or the first connect is under way, or its
	// credential is being read, or the manager has stopped.
	NotStarted Reason = "NotStarted"
	// InvalidReference: the extension names no ServiceAccount or Secret, or none that can exist.
	InvalidReference Reason = "InvalidReference"
	// ServiceAccountNotFound: the ServiceAccount does not exist, or was recreated this moment.
	ServiceAccountNotFound Reason = "ServiceAccountNotFound"
	// TokenRequestFailed: the API server issued no token.
	TokenRequestFailed Reason = "TokenRequestFailed"
	// InvalidCredential: what was provided cannot be used as a credential.
	InvalidCredential Reason = "InvalidCredential"
	// NotAllowed: the extension may not act as that ServiceAccount, or use that Secret.
	NotAllowed Reason = "NotAllowed"
	// OperatorForbidden: the host operator itself lacks a permission: to list and watch the
	// extensions, the ServiceAccounts or the Secrets that they name. The message says which
	// permission, and which role to bind.
	OperatorForbidden Reason = "OperatorForbidden"
	// UnauthorizedCredential: the API server does not accept the credential, or not the
	// impersonation.
	UnauthorizedCredential Reason = "Unauthorized"
	// IdentityMismatch: the API server accepts the credential as another identity's, or the
	// extension refers to another identity, or credential, than the one it was connected with.
	IdentityMismatch Reason = "IdentityMismatch"
	// Unreachable: no answer from the API server.
	Unreachable Reason = "Unreachable"
	// ProbeFailed: the API server answers, but does not state the identity.
	ProbeFailed Reason = "ProbeFailed"
	// Filtered: the extension does not match Options.WatchFilterValue or Options.Filter any more.
	// Only handles from before get it; the extension itself is unknown then.
	Filtered Reason = "Filtered"
	// Deleted: the extension is gone. Only handles from before get it; the extension itself is
	// unknown then.
	Deleted Reason = "Deleted"
)

// ReasonOfVerdict returns why a probe that was not Valid ends or prevents a connection.
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

// ErrNotConnected is in the chain of every error that is due to an extension not being connected,
// for errors.Is.
var ErrNotConnected = errors.New("not connected")

// NotConnectedError says which extension is not connected, why and since when. Values are shared:
// do not change them.
type NotConnectedError struct {
	Extension types.NamespacedName
	Reason    Reason
	Since     time.Time // zero if the extension is unknown
	Cause     error     // what failed last, nil if nothing did
}

// Error implements error. It never holds a secret.
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

// ErrorText returns the error's text, shortened, because a server may have written it. It is "" for
// nil.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	return untrusted.Shorten(err.Error())
}
