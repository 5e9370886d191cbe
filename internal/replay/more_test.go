package replay

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The next informer does not repeat a deletion that the handler received, and the record of an
// object is the latest one.
func TestRemembersTheLatest(t *testing.T) {
	g := NewWithT(t)
	h := newRecorder()
	f := New(h, &corev1.ConfigMap{}, Options{})
	first := f.Begin()
	first.OnAdd(object("goes", "1"), true)
	first.OnAdd(object("changes", "1"), true)
	changed := object("changes", "2") // client-go reports a recreation that it did not observe like this
	changed.Labels, changed.ResourceVersion = map[string]string{"l": "new"}, "7"
	first.OnUpdate(object("changes", "1"), changed)
	second := f.Begin()
	h.Reset()
	second.OnAdd(changed, true)
	g.Expect(h.Reset()).To(Equal([]string{"add 2"}), "the object is the one on record")
	second.EmitMissingDeletes(nothing)
	g.Expect(h.Reset()).To(Equal([]string{"delete unseen ns/goes 1"}))
	known := f.Seen()
	g.Expect(known).To(HaveLen(1), "a deleted object leaves the record")
	g.Expect(known[client.ObjectKey{Namespace: "ns", Name: "changes"}]).To(Equal(Remember(changed)))
	third := f.Begin()
	third.EmitMissingDeletes(nothing)
	g.Expect(h.Reset()).To(Equal([]string{"delete unseen ns/changes 2"}))
}
