package clustercache

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
)

func TestReferences(t *testing.T) {
	g := NewWithT(t)
	var r references
	red, blue, shared, single := key("red"), key("blue"), types.NamespacedName{Namespace: "a", Name: "shared"},
		types.NamespacedName{Namespace: "a", Name: "own"}
	r.set(red, types.NamespacedName{})
	g.Expect(r.extensionsOf(shared)).To(BeEmpty())
	r.set(red, shared)
	r.set(blue, shared)
	r.set(blue, shared)
	g.Expect(r.extensionsOf(shared)).To(ConsistOf(red, blue))
	r.set(blue, single)
	g.Expect(r.extensionsOf(shared)).To(ConsistOf(red))
	g.Expect(r.extensionsOf(single)).To(ConsistOf(blue))
	r.set(red, types.NamespacedName{})
	r.set(blue, types.NamespacedName{})
	g.Expect(r.byExtension).To(BeEmpty())
	g.Expect(r.extensions).To(BeEmpty(), "removed references leave no entry")
}
