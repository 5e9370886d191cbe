package replay

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What was told as gone is not told again by the next one; and what is known of an object is the
// latest.
func TestRemembersTheLatest(t *testing.T) {
	g := NewWithT(t)
	h := newRecorder()
	f := New(h, &corev1.ConfigMap{}, Options{})
	first := f.Begin()
	first.OnAdd(object("goes", "1"), true)
	first.OnAdd(object("changes", "1"), true)
	changed := object("changes", "2") // client-go tells of a recreation that it has not seen so
	changed.Labels, changed.ResourceVersion = map[string]string{"l": "new"}, "7"
	first.OnUpdate(object("changes", "1"), changed)
	second := f.Begin()
	h.Reset()
	second.OnAdd(changed, true)
	g.Expect(h.Reset()).To(Equal([]string{"add 2"}), "it is the one that is known")
	second.TellMissing(nothing)
	g.Expect(h.Reset()).To(Equal([]string{"delete unseen 1"}))
	g.Expect(h.Last()).To(HaveField("Key", "ns/goes"))
	known := f.Known()
	g.Expect(known).To(HaveLen(1), "what is gone is forgotten")
	g.Expect(known[client.ObjectKey{Namespace: "ns", Name: "changes"}]).To(Equal(Remember(changed)))
	third := f.Begin()
	third.TellMissing(nothing)
	g.Expect(h.Reset()).To(Equal([]string{"delete unseen 2"}))
	g.Expect(h.Last()).To(HaveField("Key", "ns/changes"))
}
