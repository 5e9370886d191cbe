package connstate

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
)

func TestNotConnectedError(t *testing.T) {
	g := NewWithT(t)
	err := errors.Wrap(&NotConnectedError{Extension: types.NamespacedName{Name: "red"}, Reason: ReasonUnreachable,
		Since: t0,
		Err:   errDown}, "getting a client")
	g.Expect(err).To(MatchError(ErrNotConnected))
	g.Expect(errors.Is(err, errDown)).To(BeTrue())
	g.Expect(errors.Cause(err)).To(BeIdenticalTo(ErrNotConnected))
	g.Expect(err.Error()).To(Equal("getting a client: extension red: not connected (Unreachable): down"))
	g.Expect((&NotConnectedError{Extension: types.NamespacedName{Namespace: "ns", Name: "red"},
		Reason: ReasonNotStarted}).
		Error()).To(Equal("extension ns/red: not connected (NotStarted)"))
}

func TestReasonOfVerdict(t *testing.T) {
	for verdict, reason := range map[Verdict]Reason{
		Unauthorized: ReasonUnauthorized, Silent: ReasonUnreachable, Denied: ReasonProbeFailed, Failing: ReasonProbeFailed,
	} {
		NewWithT(t).Expect(ReasonOfVerdict(verdict)).To(Equal(reason))
	}
}
