package accessor

import (
	"fmt"
	"time"

	"github.com/pkg/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
)

// ErrNotConnected is in the chain of every error that is due to an extension not being connected, for errors.Is.
var ErrNotConnected = errors.New("not connected")

// Reason says in one word why an extension is not connected. It is "" when it is.
type Reason string

const (
	// NotStarted: nothing was tried. The extension is unknown here (not seen yet, deleted, or filtered out), or the
	// replica does not lead, or the first connect is under way, or what holds its credential
	// is being read, or the manager has stopped.
	NotStarted Reason = "NotStarted"
	// InvalidReference: the extension names no ServiceAccount or Secret, or none that can exist.
	InvalidReference Reason = "InvalidReference"
	// ServiceAccountNotFound: the ServiceAccount does not exist, or was recreated this moment.
	ServiceAccountNotFound Reason = "ServiceAccountNotFound"
	// TokenRequestFailed: the API server gave no token.
	TokenRequestFailed Reason = "TokenRequestFailed"
	// InvalidCredential: what was provided cannot be used as a credential.
	InvalidCredential Reason = "InvalidCredential"
	// NotAllowed: the extension may not act as that ServiceAccount, or use that Secret.
	NotAllowed Reason = "NotAllowed"
	// OperatorForbidden: the host operator itself lacks a permission: to list and watch the extensions, the ServiceAccounts or
	// the Secrets that they name. The message says which, and which role to bind.
	OperatorForbidden Reason = "OperatorForbidden"
	// Unauthorized: the API server does not accept the credential, or not the impersonation.
	Unauthorized Reason = "Unauthorized"
	// IdentityMismatch: the API server accepts the credential as somebody else's, or the extension refers to another
	// identity, or credential, than the one it was connected with.
	IdentityMismatch Reason = "IdentityMismatch"
	// Unreachable: no answer from the API server.
	Unreachable Reason = "Unreachable"
	// ProbeFailed: the API server answers, but not the question who we are.
	ProbeFailed Reason = "ProbeFailed"
	// Filtered: the extension does not match Options.WatchFilterValue or Options.Filter any more. Only handles from
	// before get it; the extension itself is unknown then.
	Filtered Reason = "Filtered"
	// Deleted: the extension is gone. Only handles from before get it; the extension itself is unknown then.
	Deleted Reason = "Deleted"
)

// NotConnectedError says which extension is not connected, why and since when. Values are shared: do not change
// them.
type NotConnectedError struct {
	Extension client.ObjectKey
	Reason    Reason
	Since     time.Time // zero if the extension is unknown
	Cause     error     // what failed last, nil if nothing did
}

// Error implements error. It never holds a secret.
func (e *NotConnectedError) Error() string {
	if e.Cause == nil {
		return fmt.Sprintf("extension %s: %s (%s)", KeyString(e.Extension), ErrNotConnected, e.Reason)
	}
	return fmt.Sprintf("extension %s: %s (%s): %s", KeyString(e.Extension), ErrNotConnected, e.Reason, errorText(e.Cause))
}

// Is makes errors.Is(err, ErrNotConnected) true.
func (e *NotConnectedError) Is(target error) bool { return target == ErrNotConnected }

// Unwrap returns the cause.
func (e *NotConnectedError) Unwrap() error { return e.Cause }

// errUnknown is the cause of NotStarted where the extension is unknown.
var errUnknown = errors.New("it is unknown here: not seen yet, deleted, or filtered out, or this replica does not lead")

// errIdentityMismatch is the cause of IdentityMismatch.
var errIdentityMismatch = errors.New("the API server takes us for somebody else")

// notAllowedError is the error of a rule that forbids an extension its ServiceAccount.
type notAllowedError struct{ cause error }

func (e *notAllowedError) Error() string { return e.cause.Error() }
func (e *notAllowedError) Unwrap() error { return e.cause }

// MarkNotAllowed marks err as the verdict of a rule that forbids an extension to act as its ServiceAccount.
func MarkNotAllowed(err error) error { return &notAllowedError{cause: err} }

// reasonOf says why resolving, or obtaining a credential, failed.
func reasonOf(err error) Reason {
	var notAllowed *notAllowedError
	switch {
	case errors.As(err, &notAllowed), errors.Is(err, credential.ErrNotAllowed):
		return NotAllowed
	case errors.Is(err, credential.ErrNotRead):
		return NotStarted
	case errors.Is(err, credential.ErrOperatorForbidden):
		return OperatorForbidden
	case errors.Is(err, credential.ErrInvalidReference):
		return InvalidReference
	case errors.Is(err, credential.ErrServiceAccountNotFound):
		return ServiceAccountNotFound
	case errors.Is(err, credential.ErrTokenRequestFailed):
		return TokenRequestFailed
	case errors.Is(err, credential.ErrInvalidCredential):
		return InvalidCredential
	default:
		return Unreachable
	}
}

// reasonOfVerdict says why a probe that was not Valid ends or prevents a connection.
func reasonOfVerdict(verdict healthprobe.Verdict) Reason {
	switch verdict {
	case healthprobe.Unauthorized:
		return Unauthorized
	case healthprobe.Silent:
		return Unreachable
	default:
		return ProbeFailed
	}
}

// KeyString formats a key as "namespace/name", or "name" where there is no namespace.
func KeyString(key client.ObjectKey) string {
	if key.Namespace == "" {
		return key.Name
	}
	return key.String()
}
