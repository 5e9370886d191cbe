package buckets

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/holding"
	"github.com/latchkey-dev/latchkey/internal/term"
	"github.com/latchkey-dev/latchkey/ownership"
)

const (
	// takeTimeout is how long a replica says of a bucket that it does not serve it yet.
	takeTimeout = 30 * time.Second
	// serveTimeout is how long a replica that hands over buckets waits until the next one serves a
	// bucket that it has taken.
	serveTimeout = 10 * time.Second
)

// serve holds a bucket whenever this replica is to have it, until ctx is done. Requests need the
// bucket's term and that of the fleet.
func (e *Engine) serve(ctx context.Context, replica ownership.Replica, b int, fleet *fence.Term) {
	mayTake := func(p *plan) bool {
		return p.owners[b] == e.options.Identity && (p.holders[b] == "" || p.holders[b] == e.options.Identity)
	}
	for ctx.Err() == nil && e.await(ctx, func(p *plan) bool { return !e.isLeaving() && mayTake(p) }) {
		if !e.hold(ctx, replica, b, fleet) {
			select { // another replica was faster, or the API server did not answer
			case <-ctx.Done():
			case <-time.After(e.options.RetryPeriod):
			}
		}
	}
}

// hold takes a bucket, and holds it until it is to be another replica's, its lease is lost, or ctx
// is done. It returns false if it could not take the bucket.
func (e *Engine) hold(ctx context.Context, replica ownership.Replica, b int, fleet *fence.Term) bool {
	handsOver := false
	held := holding.Hold(ctx, holding.Options{Times: e.options.times(), Timeout: e.options.RenewDeadline}, e.lock(b),
		func(holds context.Context, bucket *fence.Term) {
			e.buckets[b].held.Store(true)
			both, _ := term.Join(bucket, fleet)
			taken := e.take(ctx, replica, b, both)
			handsOver = e.holdUntil(holds, b)
			taken()
			e.giveUp(ctx, replica, b)
		})
	e.buckets[b].held.Store(false)
	e.broadcast()
	if handsOver {
		e.awaitSuccessor(ctx, b)
		<-e.moving
	}
	return held
}

// take connects the extensions of a bucket. The function that it returns ends that.
func (e *Engine) take(ctx context.Context, replica ownership.Replica, b int, both *fence.Term) (end func()) {
	start := time.Now()
	e.buckets[b].term.Store(both)
	ctrl.LoggerFrom(ctx).V(1).Info("Took a bucket", "bucket", b)
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		err := replica.Take(ctx, e.share(b))
		if errors.Is(ctx.Err(), context.Canceled) {
			return // the bucket is given up already
		}
		if err != nil {
			ctrl.LoggerFrom(ctx).Info("Not all extensions of a bucket could be tried yet", "bucket", b, "error", err.Error())
		}
		e.buckets[b].serves.Store(true)
		e.refreshMember()
		ctrl.LoggerFrom(ctx).Info("Serves a bucket", "bucket", b, "took", time.Since(start))
	}()
	return func() {
		cancel()
		<-taken
	}
}

// holdUntil returns true when the bucket is to be another replica's and its turn has come, and
// false when ctx is done.
func (e *Engine) holdUntil(ctx context.Context, b int) (handsOver bool) {
	for {
		if !e.await(ctx, func(p *plan) bool { return e.isLeaving() || p.owners[b] != e.options.Identity }) {
			return false
		}
		select {
		case e.moving <- struct{}{}:
		case <-ctx.Done():
			return false
		}
		if e.isLeaving() || e.ownerOf(b) != e.options.Identity {
			return true
		}
		<-e.moving // the bucket came back while it waited for its turn
	}
}

func (e *Engine) ownerOf(b int) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.plan.owners[b]
}

// giveUp ends what this replica does for the extensions of a bucket.
func (e *Engine) giveUp(ctx context.Context, replica ownership.Replica, b int) {
	start := time.Now()
	e.buckets[b].term.Store(nil)
	e.buckets[b].serves.Store(false)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), holding.GiveUpTimeout)
	defer cancel()
	if err := replica.GiveUp(ctx, e.share(b)); err != nil {
		ctrl.LoggerFrom(ctx).Info("A bucket is given up while something still runs for it", "bucket", b, "error", err.Error())
	}
	ctrl.LoggerFrom(ctx).Info("Gave up a bucket", "bucket", b, "took", time.Since(start))
	e.broadcast()
}

// awaitSuccessor waits until another replica serves a bucket that this one has handed over.
func (e *Engine) awaitSuccessor(ctx context.Context, b int) {
	self := e.options.Identity
	taken := func(p *plan) bool { return p.holders[b] != "" && p.holders[b] != self }
	over := func(p *plan) bool { return p.owners[b] == self || p.owners[b] == "" }
	// A successor that ended takes nothing, and is known to have ended after its lease.
	taking, cancel := context.WithTimeout(ctx, e.options.LeaseDuration+e.options.RenewDeadline)
	defer cancel()
	if !e.await(taking, func(p *plan) bool { return taken(p) || over(p) }) {
		return
	}
	ctx, cancel = context.WithTimeout(ctx, serveTimeout)
	defer cancel()
	e.await(ctx, func(p *plan) bool {
		return over(p) || !taken(p) || slices.Contains(p.serving[p.holders[b]], b)
	})
}

// lock returns the lock of a bucket.
func (e *Engine) lock(b int) resourcelock.Interface {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.options.Namespace, Name: e.options.bucketLease(b)},
		Client:     expiringLeases{e.leases, e.see, &e.observed},
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.options.Identity},
		Labels:     map[string]string{FleetLabel: e.options.Name, roleLabel: roleBucket},
	}
}

// expiringLeases returns a Lease that has expired as free. A LeaderElector counts from when it
// first saw a Lease; this replica has observed all of them from the beginning, so it need not wait
// again.
type expiringLeases struct {
	coordinationclient.LeasesGetter
	see      func(*coordinationv1.Lease)
	observed *observed
}

// Leases implements coordinationclient.LeasesGetter.
func (l expiringLeases) Leases(namespace string) coordinationclient.LeaseInterface {
	return expiringLease{l.LeasesGetter.Leases(namespace), l.see, l.observed}
}

type expiringLease struct {
	coordinationclient.LeaseInterface
	see      func(*coordinationv1.Lease)
	observed *observed
}

// Get implements coordinationclient.LeaseInterface. A version that has expired is free: the write
// that takes it fails if another version has followed.
func (l expiringLease) Get(ctx context.Context, name string, options metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease, err := l.LeaseInterface.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	l.see(lease.DeepCopy()) // the watch may be late
	seen := l.observed.get(name)
	if seen.lease != nil && seen.lease.ResourceVersion == lease.ResourceVersion && seen.holder(l.observed.now()) == "" {
		lease.Spec.HolderIdentity = new("")
	}
	return lease, nil
}
