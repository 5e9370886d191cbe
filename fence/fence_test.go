package fence

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/latchkey-dev/latchkey/internal/term"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const second = time.Second

// A fence is open from a renewal until the lease ends, counted from before the renewal was sent.
func TestOpenAsLongAsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newFence()
		g.Expect(f.Open()).To(BeFalse(), "before the first renewal")
		g.Expect(f.Term().Err()).To(And(MatchError(ErrClosed), MatchError(ContainSubstring("not taken yet"))))
		g.Expect(f.Term().Context().Err()).To(HaveOccurred())
		g.Expect(f.Remaining()).To(BeZero())
		sent := time.Now()
		time.Sleep(4 * second) // the renewal is under way
		renew(f, sent, 15*second)
		first := f.Term()
		g.Expect(first.Err()).NotTo(HaveOccurred())
		g.Expect(f.Remaining()).To(Equal(11 * second))
		time.Sleep(11*second - 1)
		g.Expect(f.Open()).To(BeTrue())
		g.Expect(first.Context().Err()).NotTo(HaveOccurred())
		time.Sleep(time.Nanosecond)
		g.Expect(f.Open()).To(BeFalse())
		g.Expect(first.Err()).To(MatchError(ErrClosed))
		<-first.Context().Done()
		g.Expect(context.Cause(first.Context())).To(MatchError(ErrClosed))

		renew(f, time.Now().Add(-15*second), 15*second)
		g.Expect(f.Open()).To(BeFalse(), "a renewal whose answer comes after the end of the lease that it made")
		renew(f, time.Now(), 15*second)
		g.Expect(f.Open()).To(BeTrue(), "the next renewal opens it again")
		g.Expect(f.Term()).NotTo(BeIdenticalTo(first))
		g.Expect(first.Err()).To(MatchError(ErrClosed), "what began earlier stays ended")
		f.close("given up")
	})
}

// Renewals in time make one term, whose timer is set again.
func TestRenewalsExtendATerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newFence()
		renew(f, time.Now(), 15*second)
		term := f.Term()
		for range 20 {
			time.Sleep(10 * second)
			renew(f, time.Now(), 15*second)
			g.Expect(f.Term()).To(BeIdenticalTo(term))
		}
		renew(f, time.Now().Add(-5*second), 15*second)
		g.Expect(f.Remaining()).To(Equal(15*second), "an earlier renewal shortens nothing")
		time.Sleep(15 * second)
		synctest.Wait()
		g.Expect(term.Context().Err()).To(HaveOccurred())
	})
}

// renew renews the lease, or begins the next term.
func renew(f *Fence, sent time.Time, duration time.Duration) {
	f.renewed(sent, duration, term.Count(f.Term())+1)
}

// skewed returns t with another wall clock and the same monotonic clock, as time.Now does after the
// wall clock was set.
func skewed(t time.Time, seconds int64) time.Time {
	// Bits 30 to 62 of the first word are the seconds of the wall clock, if bit 63 says that there is
	// a monotonic reading.
	wall := (*uint64)(unsafe.Pointer(&t))
	*wall += uint64(seconds << 30)
	return t
}

// Setting the wall clock neither opens nor closes a fence.
func TestWallClock(t *testing.T) {
	for name, seconds := range map[string]int64{"forward": 7200, "back": -7200} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			base, passed, skew := time.Now(), atomic.Int64{}, atomic.Int64{}
			now := func() time.Time { return skewed(base.Add(time.Duration(passed.Load())), skew.Load()) }
			f := newFenceAt(now)
			renew(f, now(), time.Hour)
			term := f.Term()
			before := now()
			skew.Store(seconds)
			g.Expect(now().Unix()-before.Unix()).To(Equal(seconds), "the wall clock is set")
			g.Expect(now().Sub(before)).To(BeZero(), "and the monotonic clock is not")
			g.Expect(f.Remaining()).To(Equal(time.Hour))
			passed.Store(int64(time.Hour) - 1)
			g.Expect(term.Err()).NotTo(HaveOccurred())
			renew(f, now(), time.Hour)
			skew.Store(0)
			g.Expect(f.Remaining()).To(Equal(time.Hour))
			passed.Store(int64(2*time.Hour) - 1)
			g.Expect(term.Err()).To(MatchError(ErrClosed))
			f.close("the end of the test")
		})
	}
}

// The time alone closes a fence: no goroutine has to run.
func TestNoTimerIsNeeded(t *testing.T) {
	g := NewWithT(t)
	var passed atomic.Int64
	base := time.Now()
	f := newFenceAt(func() time.Time { return base.Add(time.Duration(passed.Load())) })
	renew(f, base, time.Hour)
	term := f.Term()
	passed.Store(int64(time.Hour)) // the timer would fire in an hour
	g.Expect(term.Context().Err()).NotTo(HaveOccurred(), "nothing has noticed yet")
	g.Expect(term.Err()).To(MatchError(ErrClosed))
	g.Expect(term.Context().Err()).To(HaveOccurred(), "who sees it first ends the term for all")
	g.Expect(f.Open()).To(BeFalse())
	renew(f, base.Add(time.Hour), time.Hour)
	g.Expect(f.Open()).To(BeTrue())
	g.Expect(term.Err()).To(MatchError(ErrClosed), "the term that nothing had ended")
	g.Expect(context.Cause(term.Context())).To(MatchError(ErrClosed))
	f.close("the end of the test")
}

// Watch reports that the fence has opened and closed, and keeps nothing when it ends.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newFence()
		ctx, cancel := context.WithCancel(t.Context())
		var seen []bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.Watch(ctx, func() { seen = append(seen, f.Open()) })
		}()
		synctest.Wait()
		renew(f, time.Now(), 15*second)
		synctest.Wait()
		time.Sleep(5 * second)
		renew(f, time.Now(), 15*second)
		synctest.Wait()
		time.Sleep(15 * second)
		synctest.Wait()
		renew(f, time.Now(), 15*second)
		synctest.Wait()
		f.close("given up")
		synctest.Wait()
		cancel()
		<-done
		g.Expect(seen).To(Equal([]bool{false, true, false, true, false}))
		g.Expect(f.watchers).To(BeEmpty())
	})
}
