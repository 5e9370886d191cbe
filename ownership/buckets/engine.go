package buckets

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/ownership"
)

var _ ownership.Fitter = (*Engine)(nil)

// movingAtOnce is how many buckets a replica hands over at the same time. Each is without a replica
// for the time that the next one needs to connect its extensions.
const movingAtOnce = 2

// Engine divides extensions by their UIDs. New returns an Engine, for one ClusterCache. Its methods
// may be called from any goroutine.
type Engine struct {
	options  Options
	leases   coordinationclient.LeasesGetter
	watching coordinationclient.LeasesGetter // without a timeout
	kind     schema.GroupKind                // set by Check
	begun    atomic.Bool                     // Run was called
	ended    context.Context                 // done when Run has returned
	end      context.CancelFunc
	observed observed
	buckets  []bucket
	moving   chan struct{} // has a token for each bucket that is being handed over
	news     chan struct{} // has a signal when the plan is to be made again
	refresh  chan struct{} // has a signal when this replica's own Lease is to be written

	memberVersion string // resourceVersion of this replica's own Lease, "" if not known; one goroutine writes it

	mu      sync.Mutex
	plan    plan          // guarded by mu
	leaving bool          // guarded by mu; this replica is to have no bucket any more
	changed chan struct{} // guarded by mu; closed and replaced when plan or leaving change
}

// bucket is the part of a bucket that changes.
type bucket struct {
	term   atomic.Pointer[fence.Term] // nil while the bucket is not this replica's
	serves atomic.Bool                // its extensions are connected, or have been tried once
	held   atomic.Bool                // from when the bucket is taken until its lease is released
}

// plan is who is to have which bucket, and who has it. The slices and maps are not changed any
// more.
type plan struct {
	members []string
	owners  []string // by bucket, "" for none
	holders []string // by bucket, "" for none
	serving map[string][]int
}

// Kind implements ownership.Engine.
func (*Engine) Kind() ownership.Kind { return ownership.Shared }

// Check implements ownership.Engine. Every kind can be divided.
func (e *Engine) Check(kind schema.GroupKind, _ bool) error {
	if e.kind != (schema.GroupKind{}) {
		return errors.New("an Engine is for one ClusterCache; create another one, with another Options.Name")
	}
	e.kind = kind
	return nil
}

// Owns implements ownership.Engine.
func (e *Engine) Owns(extension client.Object) (term *fence.Term, owned bool) {
	term = e.buckets[bucketOf(extension.GetUID(), len(e.buckets))].term.Load()
	return term, term != nil
}

// share returns the extensions of a bucket.
func (e *Engine) share(bucket int) ownership.Share {
	return func(extension client.Object) bool { return bucketOf(extension.GetUID(), len(e.buckets)) == bucket }
}

// Run implements ownership.Engine. Run fails if the fleet is divided into another number of
// buckets, or is one of another kind.
func (e *Engine) Run(ctx context.Context, replica ownership.Replica) error {
	if !e.begun.CompareAndSwap(false, true) {
		return errors.New("an Engine runs once")
	}
	defer e.end()
	logger := ctrl.LoggerFrom(ctx).WithValues("fleet", e.options.Name, "identity", e.options.Identity)
	ctx = ctrl.LoggerInto(ctx, logger)
	if err := e.joinFleet(ctx); err != nil || ctx.Err() != nil {
		return err
	}

	// What watches goes on until every bucket is given up.
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	synced := make(chan struct{})
	running.Go(func() { e.observe(background, synced) })
	defer running.Wait()
	defer end()
	select {
	case <-synced:
	case <-ctx.Done():
		return nil
	}
	running.Go(func() { e.planAll(background) })
	return e.runInFleet(ctx, replica)
}

// divide serves this replica's buckets until ctx is done. Their requests need the term of the
// fleet, too. ends reports whether that is for good.
func (e *Engine) divide(ctx context.Context, replica ownership.Replica, fleet *fence.Term, ends func() bool) {
	stopRenewing := e.announce(context.WithoutCancel(ctx))
	e.awaitOthers(ctx)
	var serving sync.WaitGroup
	for b := range e.buckets {
		serving.Go(func() { e.serve(ctx, replica, b, fleet) })
	}
	<-ctx.Done()
	if ends() {
		e.leave()
	}
	serving.Wait()
	stopRenewing()
	ctrl.LoggerFrom(ctx).Info("Gave up all buckets")
}

// HandOver returns a context for the manager's Start. It is done when ctx is done, and this replica
// has handed its buckets over, one after the other, to the others: until then controllers go on, so
// that no extension waits for long. Options.HandOverTimeout bounds the time. Without HandOver a
// replica that stops gives up all buckets at once.
func (e *Engine) HandOver(ctx context.Context) context.Context {
	stopping, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		defer stop(context.Cause(ctx))
		e.leave()
		if !e.begun.Load() {
			return
		}
		bound, cancel := context.WithTimeout(stopping, e.options.HandOverTimeout)
		defer cancel()
		defer context.AfterFunc(e.ended, cancel)()
		e.await(bound, func(*plan) bool { return e.holdsNone() })
	})
	return stopping
}

func (e *Engine) holdsNone() bool {
	for b := range e.buckets {
		if e.buckets[b].held.Load() {
			return false
		}
	}
	return true
}

// leave makes this replica give up its buckets, and take no others.
func (e *Engine) leave() {
	e.mu.Lock()
	e.leaving = true
	e.mu.Unlock()
	e.replan(e.observed.now())
	e.refreshMember()
}

func (e *Engine) isLeaving() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leaving
}

func (e *Engine) broadcastLocked() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// broadcast wakes all that await something.
func (e *Engine) broadcast() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broadcastLocked()
}

// await returns true when condition is true, or false when ctx is done.
func (e *Engine) await(ctx context.Context, condition func(*plan) bool) bool {
	for {
		e.mu.Lock()
		current, changed := e.plan, e.changed
		e.mu.Unlock()
		if condition(&current) {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// planAll keeps the plan until ctx is done.
func (e *Engine) planAll(ctx context.Context) {
	for {
		now := e.observed.now()
		e.replan(now)
		var expiry <-chan time.Time
		timer := time.NewTimer(time.Hour)
		if next, ok := e.observed.nextExpiry(now); ok {
			timer.Reset(next)
			expiry = timer.C
		}
		select {
		case <-e.news:
		case <-expiry:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// replan makes the plan from what was observed.
func (e *Engine) replan(now time.Time) {
	next := plan{holders: make([]string, len(e.buckets))}
	next.members, next.serving = e.observed.members(now)
	for b := range e.buckets {
		next.holders[b] = e.observed.get(e.options.bucketLease(b)).holder(now)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	next.members = slices.DeleteFunc(next.members, func(member string) bool { return member == e.options.Identity })
	if !e.leaving {
		next.members = append(next.members, e.options.Identity)
	}
	slices.Sort(next.members)
	next.owners = assign(next.members, next.holders)
	e.plan = next
	e.broadcastLocked()
}
