package ownership

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// taker is a replica whose Take lasts until its context is done, as if an extension never settled.
type taker struct {
	began, ended, gaveUp atomic.Int64
}

func (r *taker) Take(ctx context.Context, share Share) error {
	if share(nil) {
		r.began.Add(1)
	}
	<-ctx.Done()
	r.ended.Add(1)
	return ctx.Err()
}

func (r *taker) GiveUp(context.Context, Share) error {
	r.gaveUp.Add(1)
	return nil
}

// A Leader without a fence is an error in time, and replicas that share instead of a leader share.
func TestLeaderIsChecked(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Leader(nil).Check(schema.GroupKind{}, true)).To(MatchError(ContainSubstring("fence.ForLeaderElection")))
	_, f := testutil.NewLease()
	g.Expect(Leader(f).Check(schema.GroupKind{}, true)).To(Succeed())
	_, err := WithLeaderLease(Leader(f), nil, LeaderOptions{Lease: leaderLease, Holder: "x"})
	g.Expect(err).To(MatchError(ContainSubstring("share the extensions")))
}

// A replica takes everything whenever its lease begins, although a Take of an earlier term still
// waits. What it has ends with the lease, so nothing is given up.
func TestLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		lease, f := testutil.NewLease()
		e := Leader(f)
		g.Expect(e.Kind()).To(Equal(OneLeads))
		owns := func() (*fence.Term, bool) { return e.Owns(nil) }
		_, owned := owns()
		g.Expect(owned).To(BeFalse(), "before Run, and before the lease")

		r := &taker{}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx, r) }()
		synctest.Wait()
		g.Expect(r.began.Load()).To(BeZero())

		expect := func(running int64, what string) {
			synctest.Wait()
			g.Expect(r.began.Load()-r.ended.Load()).To(Equal(running), what)
		}
		lease.Renew(3600)
		expect(1, "the first term")
		of, owned := owns()
		g.Expect(owned).To(BeTrue())
		g.Expect(of).To(BeIdenticalTo(f.Term()))

		before := r.began.Load()
		lease.Release()
		lease.Renew(3600) // Run may learn of both at once
		expect(1, "the next term")
		g.Expect(r.began.Load()).To(BeNumerically(">", before))
		lease.Release()
		expect(0, "no term")
		_, owned = owns()
		g.Expect(owned).To(BeFalse())

		lease.Renew(60)
		expect(1, "a term that ends by itself")
		time.Sleep(time.Hour)
		expect(0, "the lease was not renewed")

		lease.Renew(3600)
		expect(1, "the last term")
		stop()
		g.Expect(<-ended).To(Succeed())
		expect(0, "the end")
		g.Expect(r.gaveUp.Load()).To(BeZero())
	})
}

var _ Replica = (*taker)(nil)
