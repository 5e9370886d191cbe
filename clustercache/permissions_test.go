package clustercache

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func key(name string) client.ObjectKey { return client.ObjectKey{Name: name} }

// One extension checks on behalf of all whether a permission exists. Extensions that still lack
// their permission keep waiting.
func TestForbidden(t *testing.T) {
	g := NewWithT(t)
	var f forbidden
	_, ok := f.any()
	g.Expect(ok).To(BeFalse())
	g.Expect(f.note(key("fine"), false)).To(BeEmpty())
	for _, name := range []string{"a", "b", "c", "gone"} {
		g.Expect(f.note(key(name), true)).To(BeEmpty())
	}
	f.forget(key("gone"))
	seen := map[client.ObjectKey]bool{}
	for range 1000 {
		waiting, ok := f.any()
		g.Expect(ok).To(BeTrue())
		seen[waiting] = true
	}
	g.Expect(seen).To(HaveLen(3), "each extension gets its turn")
	g.Expect(f.note(key("b"), false)).To(ConsistOf(key("a"), key("c")))
	g.Expect(f.note(key("a"), false)).To(BeEmpty(), "this extension was woken with the others")
	g.Expect(f.note(key("c"), true)).To(BeEmpty())
	waiting, _ := f.any()
	g.Expect(waiting).To(Equal(key("c")))
}
