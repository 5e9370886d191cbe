package term

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const second = time.Second

// A joined term ends with each of its parents, or before, and ends none of them.
func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		bucket := NewLease(time.Now, time.Now(), time.Minute)
		fleet := NewLease(time.Now, time.Now(), 10*second)
		both, _ := Join(bucket.Term(), nil, fleet.Term())
		first, endFirst := Join(both)
		other, _ := Join(both)
		g.Expect(first.Err()).NotTo(HaveOccurred())
		endFirst("given up")
		endFirst("given up again")
		g.Expect(first.Err()).To(And(MatchError(ErrClosed), MatchError(ContainSubstring("given up: "))))
		g.Expect(first.Context().Err()).To(HaveOccurred())
		for _, lasting := range []*Term{other, both, bucket.Term(), fleet.Term()} {
			g.Expect(lasting.Err()).NotTo(HaveOccurred())
			g.Expect(lasting.Context().Err()).NotTo(HaveOccurred())
		}

		g.Expect(fleet.Renew(time.Now(), 20*second)).To(BeTrue())
		time.Sleep(20*second - 1)
		g.Expect(other.Err()).NotTo(HaveOccurred(), "a renewal")
		time.Sleep(time.Nanosecond)
		g.Expect(other.Err()).To(MatchError(errNotRenewed), "by the time alone")
		synctest.Wait()
		for _, ended := range []*Term{both, other} {
			g.Expect(context.Cause(ended.Context())).To(MatchError(errNotRenewed))
			g.Expect(ended.Err()).To(MatchError(errNotRenewed))
		}
		g.Expect(first.Err()).To(MatchError(ContainSubstring("given up: ")), "the first cause stays")
		g.Expect(bucket.Term().Err()).NotTo(HaveOccurred())
		g.Expect(fleet.Renew(time.Now(), 20*second)).To(BeFalse(), "the next renewal makes another lease")

		fleet = NewLease(time.Now, time.Now(), time.Hour)
		both, _ = Join(bucket.Term(), fleet.Term())
		bucket.End(errors.Join(errors.New("it is lost"), ErrClosed))
		g.Expect(both.Err()).To(MatchError(ContainSubstring("it is lost")))
		g.Expect(context.Cause(both.Context())).To(MatchError(ContainSubstring("it is lost")))
		fleet.End(ErrClosed)
	})
}

// Without a timer that fires, and without a goroutine that runs, a joined term ends in time.
func TestJoinComparesTheTime(t *testing.T) {
	g := NewWithT(t)
	late := time.Duration(0) // how late the timers of the leases are
	now := func() time.Time { return time.Now().Add(late) }
	first, other := NewLease(now, now(), 2*time.Hour), NewLease(now, now(), time.Hour)
	joined, _ := Join(first.Term(), other.Term())
	part, end := Join(joined)
	g.Expect(part.Err()).NotTo(HaveOccurred())
	late = time.Hour
	g.Expect(part.Err()).To(MatchError(errNotRenewed))
	<-part.Context().Done()
	end("later")
	g.Expect(part.Err()).To(MatchError(errNotRenewed), "the first cause stays")
	first.End(ErrClosed)
}

// A term without parents ends only early.
func TestJoinOfNone(t *testing.T) {
	g := NewWithT(t)
	free, end := Join(nil)
	g.Expect(free.Err()).NotTo(HaveOccurred())
	end("given up")
	g.Expect(free.Err()).To(MatchError(ErrClosed))
	<-free.Context().Done()
	g.Expect((*Term)(nil).Err()).NotTo(HaveOccurred(), "a nil term lasts for ever")
}

// What has ended is not kept by a parent that goes on: the lease of a fleet outlives many of
// buckets.
func TestJoinReleasesItsParents(t *testing.T) {
	g := NewWithT(t)
	fleet := NewLease(time.Now, time.Now(), time.Hour)
	defer fleet.End(ErrClosed)
	join := func() []weak.Pointer[Term] {
		bucket := NewLease(time.Now, time.Now(), time.Hour)
		byParent, _ := Join(bucket.Term(), fleet.Term())
		early, end := Join(fleet.Term(), fleet.Term())
		bucket.End(ErrClosed)
		end("given up")
		return []weak.Pointer[Term]{weak.Make(byParent), weak.Make(early)}
	}
	for _, pointer := range join() {
		g.Eventually(func() bool {
			runtime.GC()
			return pointer.Value() == nil
		}).Should(BeTrue())
	}
}

// Renewals and the end of a lease come at the same time.
func TestRenewWhileItEnds(t *testing.T) {
	g := NewWithT(t)
	for range 1000 {
		l := NewLease(time.Now, time.Now(), time.Hour)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			l.End(ErrClosed)
		}()
		lasted := l.Renew(time.Now(), time.Hour)
		_ = l.Term().Err()
		<-ended
		g.Expect(l.Term().Err()).To(MatchError(ErrClosed))
		g.Expect(l.Remaining()).To(BeZero())
		g.Expect(l.Renew(time.Now(), time.Hour)).To(BeFalse(), "after it has ended, whether that lasted: %t", lasted)
	}
}

// What the end of a term's context starts finds the term ended, with its cause.
func TestEndIsSeenWithTheContext(t *testing.T) {
	g := NewWithT(t)
	for range 20 {
		l := NewLease(time.Now, time.Now(), time.Hour)
		given := errors.Join(errors.New("given up"), ErrClosed)
		found := make(chan error)
		const functions = 200
		for range functions {
			context.AfterFunc(l.Term().Context(), func() { found <- l.Term().Err() })
		}
		go l.End(given)
		for range functions {
			g.Expect(<-found).To(MatchError(given))
		}
	}
}
