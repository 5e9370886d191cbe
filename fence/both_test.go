package fence

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
)

// A fence within another one is open while both are, and its terms end with either.
func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		inner, outer := newFence(), newFence()
		f := inner.Within(outer)
		g.Expect(inner.Within(outer)).To(BeIdenticalTo(f))
		g.Expect(inner.Within(newFence())).NotTo(BeIdenticalTo(f))
		ctx, cancel := context.WithCancel(t.Context())
		changes, watched := make(chan struct{}, 100), make(chan struct{})
		go func() {
			defer close(watched)
			f.Watch(ctx, func() { changes <- struct{}{} })
		}()
		synctest.Wait()
		inner.renewed(time.Now(), time.Minute)
		g.Expect(f.Open()).To(BeFalse())
		synctest.Wait()
		outer.renewed(time.Now(), 10*time.Second)
		synctest.Wait()
		g.Expect(len(changes)).To(Equal(3), "the first call, and a change of each")
		g.Expect(f.Open()).To(BeTrue())
		g.Expect(f.Remaining()).To(Equal(10 * time.Second))
		term := f.Term()
		g.Expect(f.Term()).To(BeIdenticalTo(term))
		part := term.Part()
		term.End("nothing ends a term but its leases")
		g.Expect(term.Err()).NotTo(HaveOccurred())

		outer.renewed(time.Now(), 20*time.Second)
		g.Expect(f.Term()).To(BeIdenticalTo(term), "a renewal")
		time.Sleep(20 * time.Second)
		g.Expect(term.Err()).To(MatchError(ErrClosed), "by the time alone")
		synctest.Wait()
		for _, ended := range []*Term{term, part} {
			g.Expect(ended.Context().Err()).To(HaveOccurred())
			g.Expect(ended.Err()).To(MatchError(ErrClosed))
			g.Expect(context.Cause(ended.Context())).To(MatchError(ErrClosed))
		}
		g.Expect(inner.Open()).To(BeTrue())
		g.Expect(f.Term()).To(BeNil())

		outer.renewed(time.Now(), time.Hour)
		next := f.Term()
		g.Expect(next).NotTo(BeIdenticalTo(term))
		inner.close("it is lost")
		g.Expect(next.Err()).To(MatchError(ContainSubstring("it is lost")))
		synctest.Wait()
		g.Expect(context.Cause(next.Context())).To(MatchError(ContainSubstring("it is lost")))
		g.Expect(f.Remaining()).To(BeZero())
		cancel()
		<-watched
		outer.close("the test ends")
	})
}
