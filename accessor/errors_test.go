package accessor

import (
	"testing"

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
		connstate.ReasonUnreachable:       errDown,
	} {
		NewWithT(t).Expect(reasonOf(err)).To(Equal(reason))
	}
}

// tokenRequestFailed is an error of a TokenRequest.
type tokenRequestFailed struct{ error }

func (e *tokenRequestFailed) Unwrap() []error {
	return []error{identity.ErrTokenRequestFailed, e.error}
}
