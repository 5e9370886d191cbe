package lifecycle

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

func TestReasonOf(t *testing.T) {
	for reason, err := range map[connstate.Reason]error{
		connstate.ReasonNotAllowed:             errors.WithMessage(credential.ErrNotAllowed, "x"),
		connstate.ReasonInvalidReference:       errors.Wrap(credential.ErrInvalidReference, "x"),
		connstate.ReasonServiceAccountNotFound: errors.Wrap(identity.ErrServiceAccountNotFound, "x"),
		connstate.ReasonTokenRequestFailed:     errors.Wrap(identity.ErrTokenRequestFailed, "x"),
		connstate.ReasonInvalidCredential:      errors.Wrap(credential.ErrInvalidCredential, "x"),
		connstate.ReasonThrottled:              &tokenRequestFailed{apierrors.NewTooManyRequests("busy", 1)},

		connstate.ReasonOperatorForbidden: errors.Wrap(identity.ErrOperatorForbidden, "x"),
		connstate.ReasonNotStarted:        errors.Wrap(identity.ErrPending, "x"),
		connstate.ReasonUnreachable:       errors.New("connection refused"),
	} {
		NewWithT(t).Expect(ReasonOf(err)).To(Equal(reason))
	}
}

// tokenRequestFailed is an error of a TokenRequest.
type tokenRequestFailed struct{ error }

func (e *tokenRequestFailed) Unwrap() []error {
	return []error{identity.ErrTokenRequestFailed, e.error}
}

// What ends a machine decides the reason that the state shows from then on.
func TestReasonOfTheEnd(t *testing.T) {
	for event, want := range map[Event]connstate.Reason{
		Removed{Why: Deleted}:  connstate.ReasonDeleted,
		Removed{Why: Filtered}: connstate.ReasonFiltered,
		Removed{Why: Stopped}:  connstate.ReasonNotStarted,
		GiveUp{}:               connstate.ReasonNotOwned,
	} {
		m := New(scenarioConfig, epoch0, 0)
		m.Step(epoch0, Observed{}, event)
		NewWithT(t).Expect(m.Snapshot(epoch0, Observed{}).Reason).To(Equal(want), "%#v", event)
	}
	for shared, want := range map[bool]connstate.Reason{
		false: connstate.ReasonNotLeading,
		true:  connstate.ReasonNotOwned,
	} {
		config := *scenarioConfig
		config.Shared = shared
		m := New(&config, epoch0, 0)
		m.Step(epoch0, Observed{}, LeaseEnded{})
		NewWithT(t).Expect(m.Snapshot(epoch0, Observed{}).Reason).To(Equal(want), "%v", shared)
	}
}

// A caller with another object learns why a newer credential is not in use.
func TestStale(t *testing.T) {
	g := NewWithT(t)
	m := New(scenarioConfig, epoch0, 0)
	reason, err := m.Stale(errors.New("another reference"))
	g.Expect(reason).To(Equal(connstate.ReasonStale))
	g.Expect(err).To(MatchError("another reference"))
	m.rotationErr = errServer
	reason, err = m.Stale(errors.New("another reference"))
	g.Expect(reason).To(Equal(connstate.ReasonStale))
	g.Expect(err).To(MatchError("another reference: the server failed"))
	g.Expect(err).To(MatchError(errServer))
}

// A review whose own credential failed was not sent, and says nothing about the API server.
func TestNotSent(t *testing.T) {
	g := NewWithT(t)
	busy := &tokenRequestFailed{apierrors.NewTooManyRequests("busy", 7)}
	g.Expect(NotSent(busy)).To(Equal(Answer{
		Verdict:    connstate.Throttled,
		Err:        busy,
		NotSent:    connstate.ReasonThrottled,
		RetryAfter: 7 * time.Second,
	}))
	g.Expect(NotSent(credential.ErrInvalidCredential)).To(Equal(Answer{
		Verdict: connstate.Failing,
		Err:     credential.ErrInvalidCredential,
		NotSent: connstate.ReasonInvalidCredential,
	}))
	g.Expect(WasSent(errServer)).To(BeTrue())
	g.Expect(WasSent(apierrors.NewTooManyRequests("busy", 7))).To(BeTrue(), "the answer of the target")
	g.Expect(WasSent(busy)).To(BeFalse())
	g.Expect(WasSent(&credential.NoTokenError{Err: errServer})).To(BeFalse())
}
