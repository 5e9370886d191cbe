package machinetest

import (
	"testing"

	. "github.com/onsi/gomega"
)

// Explore finds every world within the depth, once.
func TestExplore(t *testing.T) {
	g := NewWithT(t)
	double := func(w *int, visit func(int, []string)) {
		visit(*w, nil) // a step that changes nothing
		if *w < 100 {
			visit(*w*2, nil)
			visit(*w+3, nil)
		}
	}
	seen, depth, steps := Explore(t, 1, 2, double)
	g.Expect(seen).To(HaveLen(6), "1, 2, 4, 5, 7 and 8")
	g.Expect(seen).To(And(HaveKey(4), HaveKey(5), HaveKey(7), HaveKey(8)))
	g.Expect(depth).To(Equal(2))
	g.Expect(steps).To(Equal(9), "three of each of 1, 2 and 4")
	seen, depth, _ = Explore(t, 1, 1000, double)
	g.Expect(depth).To(BeNumerically("<", 1000), "the fixpoint is reached")
	g.Expect(seen).To(HaveKey(196))
}
