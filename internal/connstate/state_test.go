package connstate

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func TestNotConnectedError(t *testing.T) {
	g := NewWithT(t)
	err := errors.Wrap(&NotConnectedError{
		Extension: types.NamespacedName{Name: "red"},
		Reason:    ReasonUnreachable,
		Since:     t0,
		Err:       errDown,
	}, "getting a client")
	g.Expect(err).To(MatchError(ErrNotConnected))
	g.Expect(errors.Is(err, errDown)).To(BeTrue())
	g.Expect(errors.Cause(err)).To(BeIdenticalTo(ErrNotConnected))
	g.Expect(err.Error()).To(Equal("getting a client: extension red: not connected (Unreachable): down"))
	g.Expect((&NotConnectedError{
		Extension: types.NamespacedName{Namespace: "ns", Name: "red"},
		Reason:    ReasonNotStarted,
	}).
		Error()).To(Equal("extension ns/red: not connected (NotStarted)"))
}

// The status of a request for a token says nothing about the object that the caller asked for.
func TestNotConnectedErrorHasNoOtherStatus(t *testing.T) {
	g := NewWithT(t)
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccounts"}, "red")
	err := errors.Wrap(&NotConnectedError{Reason: ReasonServiceAccountNotFound, Err: missing}, "reading")
	g.Expect(apierrors.IsNotFound(err)).To(BeFalse())
	g.Expect(apierrors.IsServiceUnavailable(err)).To(BeTrue())
	g.Expect(errors.Is(err, missing)).To(BeTrue())
}

func TestReasonOfVerdict(t *testing.T) {
	for verdict, reason := range map[Verdict]Reason{
		Unauthorized: ReasonUnauthorized,
		Silent:       ReasonUnreachable,
		Denied:       ReasonProbeFailed,
		Failing:      ReasonProbeFailed,
	} {
		NewWithT(t).Expect(ReasonOfVerdict(verdict)).To(Equal(reason))
	}
}
