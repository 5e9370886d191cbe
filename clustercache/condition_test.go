package clustercache

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestCondition(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", errors.New("no"))
	notConnected := &NotConnectedError{
		Extension: client.ObjectKey{Name: "red"},
		Reason:    ReasonUnreachable,
		Err:       forbidden,
	}
	noToken := &NoTokenError{ServiceAccount: types.NamespacedName{Namespace: "ns", Name: "sa"}, Err: forbidden}
	for name, tc := range map[string]struct {
		err     error
		status  metav1.ConditionStatus
		reason  string
		message string
	}{
		"success":       {nil, metav1.ConditionTrue, "Connected", ""},
		"Forbidden":     {errors.Wrap(forbidden, "reading"), metav1.ConditionTrue, "Connected", ""},
		"not connected": {errors.Wrap(notConnected, "reading"), metav1.ConditionFalse, "Unreachable", notConnected.Error()},
		"not connected, because of a token": {&NotConnectedError{Reason: ReasonUnreachable, Err: noToken},
			metav1.ConditionFalse, "Unreachable", (&NotConnectedError{Reason: ReasonUnreachable, Err: noToken}).Error()},
		"no token": {errors.Wrap(noToken, "reading"), metav1.ConditionFalse, "TokenRequestFailed", noToken.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			condition := Condition(tc.err, 7)
			g.Expect(condition).To(Equal(metav1.Condition{
				Type:               ConditionConnected,
				Status:             tc.status,
				Reason:             tc.reason,
				Message:            tc.message,
				ObservedGeneration: 7,
			}))
			var conditions []metav1.Condition
			g.Expect(meta.SetStatusCondition(&conditions, condition)).To(BeTrue())
			g.Expect(meta.SetStatusCondition(&conditions, Condition(tc.err, 7))).To(BeFalse(), "the same is no change")
		})
	}
}

func TestReportedElsewhere(t *testing.T) {
	g := NewWithT(t)
	for _, reason := range []Reason{ReasonStale, ReasonNotOwned} {
		g.Expect(ReportedElsewhere(errors.Wrap(&NotConnectedError{Reason: reason}, "reading"))).To(BeTrue(), reason)
	}
	g.Expect(ReportedElsewhere(&NotConnectedError{Reason: ReasonNotLeading})).To(BeFalse())
	g.Expect(ReportedElsewhere(errors.New("no"))).To(BeFalse())
	g.Expect(ReportedElsewhere(nil)).To(BeFalse())
}

func TestEnqueueExtension(t *testing.T) {
	g := NewWithT(t)
	extension := newUnstructured(ClusterExtensionGVK)
	extension.SetNamespace("ns")
	extension.SetName("red")
	g.Expect(EnqueueExtension(t.Context(), extension)).To(HaveExactElements(
		HaveField("NamespacedName", client.ObjectKey{Namespace: "ns", Name: "red"})))
}
