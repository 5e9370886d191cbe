package accessor

import (
	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// Aliases of types in package connstate, with the names that clustercache uses.
type (
	// Phase is the phase of a connection's lifecycle.
	Phase = connstate.Phase
	// Reason is a one-word reason why an extension is not connected.
	Reason = connstate.Reason
	// NotConnectedError states which extension is not connected, why and since when.
	NotConnectedError = connstate.NotConnectedError
	// Identity is a user as an API server states it.
	Identity = connstate.Identity
	// HealthCheckingState is the result of a connection's probes.
	HealthCheckingState = connstate.Health
)

// The phases and reasons; package connstate documents them.
const (
	Disconnected = connstate.Disconnected
	Connecting   = connstate.Connecting
	Connected    = connstate.Connected

	NotStarted             = connstate.NotStarted
	InvalidReference       = connstate.InvalidReference
	ServiceAccountNotFound = connstate.ServiceAccountNotFound
	TokenRequestFailed     = connstate.TokenRequestFailed
	InvalidCredential      = connstate.InvalidCredential
	NotAllowed             = connstate.NotAllowed
	OperatorForbidden      = connstate.OperatorForbidden
	Unauthorized           = connstate.UnauthorizedCredential
	IdentityMismatch       = connstate.IdentityMismatch
	Unreachable            = connstate.Unreachable
	ProbeFailed            = connstate.ProbeFailed
	Filtered               = connstate.Filtered
	Deleted                = connstate.Deleted
)

// ErrNotConnected is in the chain of every error whose cause is that an extension is not connected.
// Use errors.Is.
var ErrNotConnected = connstate.ErrNotConnected

// errUnknown is the cause of NotStarted if the extension is unknown.
var errUnknown = errors.New("the extension is unknown here: not seen yet, deleted, or filtered out, or this " +
	"replica is not the leader")

// notAllowedError is the error of a rule that forbids an extension to use its ServiceAccount.
type notAllowedError struct{ cause error }

func (e *notAllowedError) Error() string { return e.cause.Error() }
func (e *notAllowedError) Unwrap() error { return e.cause }

// MarkNotAllowed marks err as the verdict of a rule that forbids an extension to act as its
// ServiceAccount.
func MarkNotAllowed(err error) error { return &notAllowedError{cause: err} }

// reasonOf returns the reason why resolving an extension, or obtaining a credential, failed.
func reasonOf(err error) Reason {
	var notAllowed *notAllowedError
	switch {
	case errors.As(err, &notAllowed), errors.Is(err, credential.ErrNotAllowed):
		return NotAllowed
	case errors.Is(err, credential.ErrPending):
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
