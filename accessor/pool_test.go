package accessor

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
)

// A target that hangs takes no more than its share, and submit never waits.
func TestPoolIsBoundedPerTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var p pool
		release := make(chan struct{})
		var hanging, others atomic.Int32
		for range 500 {
			p.submit("hangs", func() { hanging.Add(1); <-release })
		}
		for i := range 500 {
			p.submit(fmt.Sprintf("answers-%d", i%7), func() { others.Add(1) })
		}
		synctest.Wait()
		g.Expect(hanging.Load()).To(BeEquivalentTo(maxJobsPerTarget))
		g.Expect(others.Load()).To(BeEquivalentTo(500))
		close(release)
		synctest.Wait()
		g.Expect(hanging.Load()).To(BeEquivalentTo(500))
		g.Expect(p.queues).To(BeEmpty(), "nothing is left of a target without jobs")
		p.close()
	})
}

func TestPoolIsBoundedInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var p pool
		release := make(chan struct{})
		var running, most atomic.Int32
		for i := range 400 {
			p.submit(fmt.Sprintf("target-%d", i), func() {
				if n := running.Add(1); n > most.Load() {
					most.Store(n)
				}
				<-release
				running.Add(-1)
			})
		}
		synctest.Wait()
		g.Expect(running.Load()).To(BeEquivalentTo(maxJobs))
		close(release)
		p.mu.Lock()
		waiting := len(p.turns)
		p.mu.Unlock()
		g.Expect(waiting).To(BeNumerically("<=", 400-maxJobs))
		synctest.Wait()
		g.Expect(most.Load()).To(BeNumerically("<=", maxJobs))
		g.Expect(p.queues).To(BeEmpty())
		p.close()
	})
}

func TestPoolCloseDropsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var p pool
		release := make(chan struct{})
		var ran atomic.Int32
		for range 2 * maxJobsPerTarget {
			p.submit("target", func() { ran.Add(1); <-release })
		}
		synctest.Wait()
		closed := make(chan struct{})
		go func() { p.close(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Fatal("close did not wait for what runs")
		default:
		}
		close(release)
		<-closed
		g.Expect(ran.Load()).To(BeEquivalentTo(maxJobsPerTarget))
		p.submit("target", func() { t.Error("a closed pool runs nothing") })
		synctest.Wait()
	})
}
