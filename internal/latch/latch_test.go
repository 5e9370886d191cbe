package latch

import (
	"sync"
	"testing"
	"unsafe"

	. "github.com/onsi/gomega"
)

// A latch opens once, for those who wait already and for those who ask later.
func TestLatch(t *testing.T) {
	g := NewWithT(t)
	var l Latch
	g.Expect(l.IsOpen()).To(BeFalse())
	waiting := l.Done()
	g.Expect(waiting).NotTo(BeClosed())
	g.Expect(l.Done()).To(BeIdenticalTo(waiting))
	g.Expect(l.Open()).To(BeTrue())
	g.Expect(waiting).To(BeClosed())
	g.Expect(l.Done()).To(BeClosed())
	g.Expect(l.IsOpen()).To(BeTrue())
	g.Expect(l.Open()).To(BeFalse())

	var other Latch
	g.Expect(other.IsOpen()).To(BeFalse(), "an open latch opens no other")
	g.Expect(other.Open()).To(BeTrue())
	g.Expect(other.Done()).To(BeClosed())
}

// Of many that open it one does, and all that wait go on.
func TestLatchIsOpenedOnce(t *testing.T) {
	for range 1000 {
		var l Latch
		var wg sync.WaitGroup
		var mu sync.Mutex
		firsts := 0
		for range 4 {
			wg.Go(func() { <-l.Done() })
			wg.Go(func() {
				if l.Open() {
					mu.Lock()
					defer mu.Unlock()
					firsts++
				}
			})
		}
		wg.Wait()
		NewWithT(t).Expect(firsts).To(Equal(1))
	}
}

// A latch that no one waits for takes 8 bytes, and no allocation.
func TestLatchAllocations(t *testing.T) {
	NewWithT(t).Expect(unsafe.Sizeof(Latch{})).To(BeEquivalentTo(8))
	latches := make([]Latch, 102)
	NewWithT(t).Expect(testing.AllocsPerRun(100, func() {
		latches[0].Open()
		<-latches[0].Done()
		latches = latches[1:]
	})).To(BeZero())
}
