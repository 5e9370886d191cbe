package lifecycle

import (
	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// ReasonOf returns the reason why resolving an extension, or obtaining a credential, failed.
func ReasonOf(err error) connstate.Reason {
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

// NotSent returns the answer of an attempt whose own credential failed: no review was sent. The API
// server that issues tokens may have answered "try again later".
func NotSent(err error) Answer {
	answer := Answer{Verdict: connstate.Failing, Err: err, NotSent: ReasonOf(err)}
	if retryAfter, throttled := connstate.ThrottledFor(err); throttled {
		answer.Verdict, answer.RetryAfter = connstate.Throttled, retryAfter
	}
	return answer
}

// WasSent reports whether a review that failed with err was sent. A review is not sent if there is
// no credential for it.
func WasSent(err error) bool {
	var none *credential.NoTokenError
	return ReasonOf(err) == connstate.ReasonUnreachable && !errors.As(err, &none)
}

// Stale returns the reason and the cause for a caller whose object is not the one that the
// connection was made for. mismatch is the difference. A newer credential that cannot be used yet
// explains it.
func (m *Machine) Stale(mismatch error) (connstate.Reason, error) {
	if m.rotationErr != nil {
		mismatch = errors.WithMessage(m.rotationErr, mismatch.Error())
	}
	return connstate.ReasonStale, mismatch
}

// reason returns the reason of connections that end with the removal.
func (r Removal) reason() connstate.Reason {
	switch r {
	case Deleted:
		return connstate.ReasonDeleted
	case Filtered:
		return connstate.ReasonFiltered
	default:
		return connstate.ReasonNotStarted
	}
}

// Stopping returns the error of what ends because the manager stops, and has no machine any more.
func Stopping(cause error) *connstate.NotConnectedError {
	return &connstate.NotConnectedError{Reason: Stopped.reason(), Err: cause}
}

// LeaseReason is the reason of what ends with the lease.
func (c *Config) LeaseReason() connstate.Reason {
	if c.Shared {
		return connstate.ReasonNotOwned
	}
	return connstate.ReasonNotLeading
}
