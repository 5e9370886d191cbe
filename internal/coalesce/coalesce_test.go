package coalesce

import (
	"testing"

	. "github.com/onsi/gomega"
)

// A subscriber gets each key once, with its newest value, and nothing after Close.
func TestHub(t *testing.T) {
	g := NewWithT(t)
	var hub Hub[string, int]
	hub.Put("before", 1)
	g.Expect(hub.HasSubscribers()).To(BeFalse())
	one, two := hub.Subscribe(), hub.Subscribe()
	g.Expect(hub.HasSubscribers()).To(BeTrue())
	g.Expect(one.Signal()).NotTo(Receive())
	for i := range 1000 {
		hub.Put("busy", i)
		hub.Put("other", i)
	}
	one.Put("own", 1)
	g.Expect(one.Signal()).To(Receive())
	g.Expect(one.Signal()).NotTo(Receive(), "one signal for all")
	g.Expect(one.Take()).To(Equal(map[string]int{"busy": 999, "other": 999, "own": 1}))
	g.Expect(one.Take()).To(BeEmpty())
	two.Close()
	hub.Put("late", 1)
	g.Expect(one.Signal()).To(Receive(), "there is something to take again")
	g.Expect(two.Take()).To(Equal(map[string]int{"busy": 999, "other": 999}))
	g.Expect(one.Take()).To(Equal(map[string]int{"late": 1}))
	one.Close()
	g.Expect(hub.HasSubscribers()).To(BeFalse())
}

// What was known before does not replace what has changed since.
func TestPutMissing(t *testing.T) {
	g := NewWithT(t)
	var hub Hub[string, int]
	s := hub.Subscribe()
	defer s.Close()
	s.PutMissing(nil)
	g.Expect(s.Signal()).NotTo(Receive())
	hub.Put("a", 2)
	known := map[string]int{"a": 1, "b": 1}
	s.PutMissing(known)
	g.Expect(s.Signal()).To(Receive())
	g.Expect(s.Take()).To(Equal(map[string]int{"a": 2, "b": 1}))
	g.Expect(known).To(Equal(map[string]int{"a": 1, "b": 1}), "the caller keeps its map")
}
