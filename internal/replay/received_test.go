package replay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Few objects and many are the same to a feed: what was put and not removed is there, once, as it
// was last put.
func TestReceived(t *testing.T) {
	g := NewWithT(t)
	random := rand.New(rand.NewPCG(1, 2))
	var few, many int
	for range 500 {
		var r received
		expected := map[client.ObjectKey]client.Object{}
		names := 1 + random.IntN(3*fewObjects)
		for range random.IntN(100) {
			one := object(fmt.Sprint(random.IntN(names)), "")
			one.Namespace = fmt.Sprint(random.IntN(2))
			key := client.ObjectKeyFromObject(one)
			if random.IntN(3) == 0 {
				r.remove(key)
				delete(expected, key)
			} else {
				r.put(one)
				expected[key] = one
			}
		}
		g.Expect(r.len()).To(Equal(len(expected)))
		all := slices.Collect(r.all())
		g.Expect(all).To(HaveLen(len(expected)))
		for _, one := range all {
			g.Expect(one).To(BeIdenticalTo(expected[client.ObjectKeyFromObject(one)]))
		}
		if r.many == nil {
			few++
		} else {
			many++
		}
	}
	g.Expect(few).To(BeNumerically(">", 50))
	g.Expect(many).To(BeNumerically(">", 50))
}

// A feed whose handler has received again what it knew from before keeps nothing of that: not even
// the room that it took.
func TestKeepsNothingThatWasFound(t *testing.T) {
	g := NewWithT(t)
	f := New(newRecorder(), object("example", ""), Options{})
	first := f.Begin()
	first.OnAdd(object("stays", "stays"), true)
	first.OnAdd(object("goes", "goes"), true)
	second := f.Begin()
	g.Expect(f.missing).To(HaveLen(2))
	second.OnAdd(object("stays", "stays"), true)
	second.EmitMissingDeletes(nothing)
	g.Expect(f.missing).To(BeNil())
	f.Pause()
	g.Expect(f.missing).To(HaveLen(1))
	f.Begin().OnAdd(object("stays", "again"), true)
	g.Expect(f.missing).To(BeNil())
}
