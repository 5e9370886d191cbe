package serviceprovider

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// testAPI is an API object.
type testAPI struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Status            testStatus `json:"status,omitempty"`
}

type testStatus struct {
	Phase              string             `json:"phase,omitempty"`
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

func (a *testAPI) Finalizer() string                  { return "example.com/test" }
func (a *testAPI) GetStatus() any                     { return a.Status }
func (a *testAPI) GetConditions() *[]metav1.Condition { return &a.Status.Conditions }
func (a *testAPI) SetPhase(phase string)              { a.Status.Phase = phase }
func (a *testAPI) SetObservedGeneration(n int64)      { a.Status.ObservedGeneration = n }
func (a *testAPI) DeepCopyObject() runtime.Object {
	c := &testAPI{TypeMeta: a.TypeMeta, ObjectMeta: *a.ObjectMeta.DeepCopy(), Status: a.Status}
	c.Status.Conditions = append([]metav1.Condition(nil), a.Status.Conditions...)
	return c
}

// shown returns phase, status and reason.
func (a *testAPI) shown() string {
	condition := ready(a)
	return a.Status.Phase + " " + string(condition.Status) + " " + condition.Reason
}

func TestStatusFunctions(t *testing.T) {
	g := NewWithT(t)
	a := &testAPI{ObjectMeta: metav1.ObjectMeta{Generation: 7}}
	StatusProgressing(a, "Copying", "of the data")
	g.Expect(a.shown()).To(Equal("Progressing False Copying"))
	g.Expect(ready(a).Message).To(Equal("of the data"))
	g.Expect(a.Status.ObservedGeneration).To(Equal(int64(7)))
	g.Expect(ready(a).ObservedGeneration).To(Equal(int64(7)))
	StatusReady(a)
	g.Expect(a.shown()).To(Equal("Ready True Ready"))
	StatusTerminating(a)
	g.Expect(a.shown()).To(Equal("Terminating False Terminating"))
	StatusTerminatingWithReason(a, "Draining", "3 of 5 are left")
	g.Expect(a.shown()).To(Equal("Terminating False Draining"))
	g.Expect(ready(a).Message).To(Equal("3 of 5 are left"))
	g.Expect(a.Status.ObservedGeneration).To(Equal(int64(7)))
	g.Expect(a.Status.Conditions).To(HaveLen(1))
}

// What the runtime said before is over when the author's Reconciler runs. Ready is the author's to
// say.
func TestBegin(t *testing.T) {
	g := NewWithT(t)
	a := &testAPI{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
	beginStatus(a)
	g.Expect(a.shown()).To(Equal("Progressing False Reconciling"))
	StatusProgressing(a, "Unreachable", "no answer")
	beginStatus(a)
	g.Expect(a.shown()).To(Equal("Progressing False Reconciling"))
	StatusReady(a)
	beginStatus(a)
	g.Expect(a.shown()).To(Equal("Ready True Ready"), "a poll changes nothing")
	a.Generation = 2
	beginStatus(a)
	g.Expect(a.shown()).To(Equal("Progressing False Reconciling"), "nothing is said about the new spec")
	StatusReady(a)
	a.DeletionTimestamp = &deleted
	beginStatus(a)
	g.Expect(a.shown()).To(Equal("Terminating False Terminating"))
}

func TestFailed(t *testing.T) {
	g := NewWithT(t)
	a := &testAPI{}
	beginStatus(a)
	before := ready(a)
	failed(a, before, "the reason")
	g.Expect(a.shown()).To(Equal("Progressing False ReconcileError"))
	StatusProgressing(a, "NoSpace", "the author's own")
	failed(a, before, "the reason")
	g.Expect(a.shown()).To(Equal("Progressing False NoSpace"))
}

func TestStatusChanges(t *testing.T) {
	g := NewWithT(t)
	base := &testAPI{
		ObjectMeta: metav1.ObjectMeta{Name: "it", Labels: map[string]string{"a": "b"}},
		Status:     testStatus{Phase: "Ready", ObservedGeneration: 1},
	}
	ours := base.DeepCopyObject().(*testAPI)
	ours.Labels = nil // the author's changes of anything else are lost
	g.Expect(statusChanges(base, ours)).To(BeEmpty())
	ours.Status.Phase = ""
	changes, err := statusChanges(base, ours)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Marshal(changes)).To(MatchJSON(`{"phase":null}`))
}

func TestMergeConditions(t *testing.T) {
	g := NewWithT(t)
	condition := func(name, reason string) metav1.Condition {
		return metav1.Condition{Type: name, Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: created}
	}
	base := []metav1.Condition{condition("Ready", "Old"), condition("Ours", "Old"), condition("Gone", "Old"),
		condition("Foreign", "Old")}
	ours := []metav1.Condition{condition("Ready", "New"), condition("Ours", "Old"), condition("Foreign", "Old"),
		condition("Added", "New")}
	others := []metav1.Condition{condition("Foreign", "Newer"), condition("Ready", "Old"), condition("Gone", "Old"),
		condition("Theirs", "New")}
	g.Expect(mergeConditions(base, ours, others)).To(ConsistOf(condition("Foreign", "Newer"), condition("Ready", "New"),
		condition("Theirs", "New"), condition("Added", "New")), "Ours was removed by others, and we did not change it")
	g.Expect(mergeConditions(base, ours, base)).To(ConsistOf(ours))
}
