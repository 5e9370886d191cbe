package accessor

import (
	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// errUnknown is the cause of NotStarted if the extension is unknown.
var errUnknown = errors.New("the extension is unknown here: the manager has not started, or the extension " +
	"is not seen yet, deleted, or filtered out, or this replica is not the leader")

// errGivenUp is the cause of NotOwned for requests that have not started when an extension is given up.
var errGivenUp = errors.WithMessage(fence.ErrClosed, "this replica is giving up the extension")

// errNotOwned is the cause of NotOwned for an extension that is unknown here.
var errNotOwned = errors.New("this replica does not have the extension: another one has it, or none has it yet")

// reasonOf returns the reason why resolving an extension, or obtaining a credential, failed.
func reasonOf(err error) connstate.Reason {
	switch {
	case errors.Is(err, credential.ErrNotAllowed):
		return connstate.ReasonNotAllowed
	case errors.Is(err, identity.ErrPending):
		return connstate.ReasonNotStarted
	case errors.Is(err, identity.ErrOperatorForbidden):
		return connstate.ReasonOperatorForbidden
	case errors.Is(err, credential.ErrInvalidReference):
		return connstate.ReasonInvalidReference
	case errors.Is(err, identity.ErrServiceAccountNotFound):
		return connstate.ReasonServiceAccountNotFound
	case isThrottled(err):
		return connstate.ReasonThrottled
	case errors.Is(err, identity.ErrTokenRequestFailed):
		return connstate.ReasonTokenRequestFailed
	case errors.Is(err, credential.ErrInvalidCredential):
		return connstate.ReasonInvalidCredential
	default:
		return connstate.ReasonUnreachable
	}
}

// isThrottled reports whether no token was issued because the API server refuses requests for now.
func isThrottled(err error) bool {
	_, throttled := connstate.ThrottledFor(err)
	return throttled && errors.Is(err, identity.ErrTokenRequestFailed)
}
