package accessor

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/credential"
)

func TestReasonOf(t *testing.T) {
	for reason, err := range map[Reason]error{
		NotAllowed:             errors.WithMessage(MarkNotAllowed(errDown), "x"),
		InvalidReference:       errors.Wrap(credential.ErrInvalidReference, "x"),
		ServiceAccountNotFound: errors.Wrap(credential.ErrServiceAccountNotFound, "x"),
		TokenRequestFailed:     errors.Wrap(credential.ErrTokenRequestFailed, "x"),
		InvalidCredential:      errors.Wrap(credential.ErrInvalidCredential, "x"),
		OperatorForbidden:      errors.Wrap(credential.ErrOperatorForbidden, "x"),
		NotStarted:             errors.Wrap(credential.ErrPending, "x"),
		Unreachable:            errDown,
	} {
		NewWithT(t).Expect(reasonOf(err)).To(Equal(reason))
	}
}
