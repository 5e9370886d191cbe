package workpool

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

func answers() connstate.Reachability { return connstate.Reachable }

// A target that hangs uses no more than its share, and Submit never blocks.
func TestPoolIsBoundedPerTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var pool Pool
		p := pool.Share()
		release := make(chan struct{})
		var hanging, others atomic.Int32
		for range 500 {
			p.Submit("hangs", answers, Normal, func() { hanging.Add(1); <-release })
		}
		for i := range 500 {
			p.Submit(fmt.Sprintf("answers-%d", i%7), answers, Normal, func() { others.Add(1) })
		}
		synctest.Wait()
		g.Expect(hanging.Load()).To(BeEquivalentTo(maxJobsPerTarget))
		g.Expect(others.Load()).To(BeEquivalentTo(500))
		close(release)
		synctest.Wait()
		g.Expect(hanging.Load()).To(BeEquivalentTo(500))
		g.Expect(pool.queues).To(BeEmpty(), "a target without jobs has no queue")
		p.Close()
	})
}

func TestPoolIsBoundedInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var pool Pool
		p := pool.Share()
		release := make(chan struct{})
		var running, most atomic.Int32
		for i := range 400 {
			p.Submit(fmt.Sprintf("target-%d", i), answers, Normal, func() {
				for n, previous := running.Add(1), most.Load(); n > previous &&
					!most.CompareAndSwap(previous, n); previous = most.Load() {
				}
				<-release
				running.Add(-1)
			})
		}
		synctest.Wait()
		g.Expect(running.Load()).To(BeEquivalentTo(maxJobs - minUnconfirmedJobs))
		close(release)
		pool.mu.Lock()
		waiting := len(pool.turns[connstate.Reachable])
		pool.mu.Unlock()
		g.Expect(waiting).To(BeNumerically("<=", 400-(maxJobs-minUnconfirmedJobs)))
		synctest.Wait()
		g.Expect(most.Load()).To(BeNumerically("<=", maxJobs))
		g.Expect(pool.queues).To(BeEmpty())
		p.Close()
	})
}

func TestPoolCloseDropsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var pool Pool
		p := pool.Share()
		release := make(chan struct{})
		var ran atomic.Int32
		for range 2 * maxJobsPerTarget {
			p.Submit("target", answers, Normal, func() { ran.Add(1); <-release })
		}
		synctest.Wait()
		closed := make(chan struct{})
		go func() { p.Close(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Fatal("Close did not wait for the running jobs")
		default:
		}
		close(release)
		<-closed
		g.Expect(ran.Load()).To(BeEquivalentTo(maxJobsPerTarget))
		p.Submit("target", answers, Normal, func() { t.Error("a closed pool ran a job") })
		synctest.Wait()
	})
}

// Targets that are known to answer have room, however many targets hang. A target that answers
// meanwhile moves to an earlier list.
func TestPoolPrefersTargetsThatAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var pool Pool
		p := pool.Share()
		release := make(chan struct{})
		var hanging, served atomic.Int32
		var turnedOut atomic.Bool
		turnsOut := func() connstate.Reachability {
			if turnedOut.Load() {
				return connstate.Reachable
			}
			return connstate.Unresponsive
		}
		first := make(chan struct{})
		p.Submit("unknown", turnsOut, Normal, func() { <-first; turnedOut.Store(true); served.Add(1) })
		for i := range 10 * maxUnconfirmedJobs {
			p.Submit(fmt.Sprintf("hangs-%d", i), func() connstate.Reachability {
				return connstate.Unresponsive
			}, Urgent, func() { hanging.Add(1); <-release })
		}
		for range 20 {
			p.Submit("unknown", turnsOut, Normal, func() { served.Add(1) })
		}
		synctest.Wait()
		g.Expect(hanging.Load()).To(BeNumerically("<", maxUnconfirmedJobs),
			"together with the unknown target, the jobs use all of the room")
		for i := range 500 {
			p.Submit(fmt.Sprintf("answers-%d", i%7), answers, Normal, func() { served.Add(1) })
		}
		synctest.Wait()
		g.Expect(served.Load()).To(BeNumerically(">=", 500))
		close(first)
		synctest.Wait()
		g.Expect(served.Load()).To(BeEquivalentTo(521), "the remaining jobs do not wait behind targets that hang")
		close(release)
		synctest.Wait()
		g.Expect(hanging.Load()).To(BeEquivalentTo(10 * maxUnconfirmedJobs))
		g.Expect(pool.queues).To(BeEmpty())
		g.Expect(pool.running).To(Equal([reachabilities]int{}))
		p.Close()
	})
}

// Probes of healthy identities do not wait behind connects.
func TestPoolRunsUrgentJobsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var pool Pool
		p := pool.Share()
		release := make(chan struct{})
		for range maxJobsPerTarget {
			p.Submit("target", answers, Normal, func() { <-release })
		}
		var mu sync.Mutex
		order := ""
		note := func(what string) func() {
			return func() {
				mu.Lock()
				defer mu.Unlock()
				order += what
			}
		}
		for range 30 {
			p.Submit("target", answers, Normal, note("c"))
			p.Submit("target", answers, Urgent, note("p"))
		}
		release <- struct{}{} // frees the place of one job, so that the jobs run in order
		synctest.Wait()
		g.Expect(order).To(Equal(strings.Repeat("ppppc", 7)+"pp"+strings.Repeat("c", 23)),
			"connects get their turn, too")
		close(release)
		p.Close()
	})
}

// Targets that do not answer, and targets that were not tried yet, make progress however busy the
// other targets are. Targets that were not tried come before targets that did not answer.
func TestPoolServesEveryTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var pool Pool
		p := pool.Share()
		release := make(chan struct{})
		for i := range 40 * maxJobsPerTarget {
			p.Submit(fmt.Sprintf("busy-%d", i%40), answers, Urgent, func() { <-release })
		}
		silent := make(chan struct{})
		for i := range 2 * minUnconfirmedJobs {
			p.Submit(fmt.Sprintf("silent-%d", i), func() connstate.Reachability {
				return connstate.Unresponsive
			}, Normal, func() { <-silent })
		}
		var tried atomic.Int32
		p.Submit("new", func() connstate.Reachability { return connstate.Unknown }, Normal, func() { tried.Add(1) })
		synctest.Wait()
		silent <- struct{}{} // frees the place of one job
		synctest.Wait()
		g.Expect(tried.Load()).To(BeEquivalentTo(1))
		close(silent)
		close(release)
		p.Close()
	})
}

// A second target at the same address that is not known to answer does not make the address
// connstate.Unresponsive.
func TestPoolWithTwoTargetsAtOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var pool Pool
		p := pool.Share()
		silent, busy := make(chan struct{}), make(chan struct{})
		for i := range maxUnconfirmedJobs {
			p.Submit(fmt.Sprintf("silent-%d", i), func() connstate.Reachability {
				return connstate.Unresponsive
			}, Normal, func() { <-silent })
		}
		for range maxJobsPerTarget {
			p.Submit("address", answers, Urgent, func() { <-busy })
		}
		var probed atomic.Int32
		p.Submit("address", answers, Urgent, func() { probed.Add(1) })
		p.Submit("address", func() connstate.Reachability { return connstate.Unresponsive }, Normal, func() {})
		synctest.Wait()
		close(busy)
		synctest.Wait()
		g.Expect(probed.Load()).To(BeEquivalentTo(1))
		close(silent)
		p.Close()
	})
}

// A share that closes leaves the jobs of the others alone, and all of them have one limit.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var pool Pool
		one, other := pool.Share(), pool.Share()
		release := make(chan struct{})
		var ones, others atomic.Int32
		for range maxJobsPerTarget {
			one.Submit("target", answers, Normal, func() { ones.Add(1); <-release })
			other.Submit("target", answers, Normal, func() { others.Add(1); <-release })
		}
		synctest.Wait()
		g.Expect(ones.Load() + others.Load()).To(BeEquivalentTo(maxJobsPerTarget))
		running := ones.Load()
		go one.Close()
		synctest.Wait()
		close(release)
		synctest.Wait()
		g.Expect(ones.Load()).To(Equal(running), "what waited was dropped")
		g.Expect(others.Load()).To(BeEquivalentTo(maxJobsPerTarget))
		g.Expect(pool.queues).To(BeEmpty())
		other.Close()
	})
}

// Deferred jobs of a target let its other jobs go first, but for one in ten.
func TestPoolRunsDeferredJobsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var pool Pool
		p := pool.Share()
		release := make(chan struct{})
		for range maxJobsPerTarget {
			p.Submit("target", answers, Normal, func() { <-release })
		}
		synctest.Wait()
		var order strings.Builder
		note := func(letter string) func() { return func() { order.WriteString(letter) } } // one at a time
		for range 3 {
			p.Submit("target", answers, Deferred, note("d"))
		}
		for range 12 {
			p.Submit("target", answers, Normal, note("n"))
		}
		p.Submit("target", answers, Urgent, note("u"))
		release <- struct{}{} // frees the place of one job, so that the jobs run in order
		synctest.Wait()
		g.Expect(order.String()).To(Equal("d"+"unnnnnnnn"+"d"+"nnnn"+"d"), "ten others have run before the first one")
		close(release)
		p.Close()
	})
}
