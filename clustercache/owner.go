package clustercache

import (
	"cmp"
	"context"
	"maps"
	"sync"
	"time"

	"github.com/pkg/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/ownership"
)

var _ ownership.Replica = (*owner)(nil)

// owner asks the engine which extensions are this replica's, and does what the engine decides.
type owner struct {
	engine     ownership.Engine
	reconciler *reconciler

	mu sync.Mutex
	// running has the Reconciles that act on what the engine said of an extension. Each closes its
	// channel. Guarded by mu.
	running map[chan struct{}]client.Object
}

// shares reports whether replicas share the extensions.
func (o *owner) shares() bool { return o != nil && o.engine.Kind() == ownership.Shared }

// leads returns the function that reports whether this replica has all extensions, or nil if
// replicas share them, or if there is no engine.
func (o *owner) leads() func() bool {
	if o == nil || o.shares() {
		return nil
	}
	return func() bool {
		_, leads := o.term(o.reconciler.object)
		return leads
	}
}

// reconciling begins what acts on the engine's answer for an extension, and returns the function
// that ends it.
func (o *owner) reconciling(extension client.Object) (end func()) {
	done := make(chan struct{})
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running == nil {
		o.running = map[chan struct{}]client.Object{}
	}
	o.running[done] = extension
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.running, done)
		close(done)
	}
}

// reconcileTimeout bounds the wait for Reconciles, which functions of the host operator can delay.
const reconcileTimeout = 5 * time.Second

// awaitReconciles returns when no Reconcile acts any more on what the engine said before of the
// extensions in share, or reconcileTimeout is over, or ctx is done.
func (o *owner) awaitReconciles(ctx context.Context, share ownership.Share) error {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	o.mu.Lock()
	running := maps.Clone(o.running)
	o.mu.Unlock()
	for done, extension := range running {
		if !share(extension) {
			continue
		}
		select {
		case <-done:
		case <-ctx.Done(): // a function of the host operator hangs
			return errors.Wrapf(context.Cause(ctx), "waiting for a Reconcile of %s",
				connstate.KeyString(client.ObjectKeyFromObject(extension)))
		}
	}
	return nil
}

// term returns the term in which this replica may act for the extension, nil for any time, or false
// if the extension is not this replica's.
func (o *owner) term(extension client.Object) (term *fence.Term, owned bool) {
	term, owned = o.engine.Owns(extension)
	if !owned || term.Err() != nil {
		return nil, false
	}
	return term, true
}

// forgotten lets the engine see an extension that is filtered out: it may be asked to give it up.
func (o *owner) forgotten(extension client.Object) {
	if o != nil {
		_, _ = o.engine.Owns(extension)
	}
}

// run runs the engine and the set. The set ends after the engine has given up all extensions.
func (o *owner) run(ctx context.Context) error {
	setCtx, endSet := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		defer endSet()
		ended <- o.engine.Run(ctx, o)
	}()
	err := o.reconciler.set.Run(setCtx)
	engineErr := <-ended
	if engineErr == nil && ctx.Err() == nil {
		engineErr = errors.New("Options.Ownership: Run has returned before its context was done")
	}
	return cmp.Or(engineErr, err)
}

// Take implements ownership.Replica.
func (o *owner) Take(ctx context.Context, share ownership.Share) error {
	start := time.Now()
	r := o.reconciler
	extensions, err := r.listExtensions(ctx, share)
	if err != nil {
		return err // the next event of each extension reconciles it
	}
	for _, key := range extensions {
		r.wake(key)
	}
	if !o.shares() {
		return nil
	}
	err = r.set.Settled(ctx, extensions, func(key client.ObjectKey) bool { return o.isWanted(ctx, key, share) })
	r.metrics.TookShare(ctx, time.Since(start))
	return err
}

// isWanted reports whether the extension still is to be connected.
func (o *owner) isWanted(ctx context.Context, key client.ObjectKey, share ownership.Share) bool {
	object := o.reconciler.object.DeepCopyObject().(client.Object)
	if o.reconciler.objects.Get(ctx, key, object) != nil || !share(object) {
		return false
	}
	if object.GetObjectKind().GroupVersionKind().Empty() {
		gvk, err := apiutil.GVKForObject(object, o.reconciler.scheme)
		if err != nil {
			return false
		}
		object.GetObjectKind().SetGroupVersionKind(gvk)
	}
	if _, owned := o.term(object); !owned {
		return false
	}
	wanted, _ := o.reconciler.isWanted(ctx, object)
	return wanted
}

// GiveUp implements ownership.Replica.
func (o *owner) GiveUp(ctx context.Context, share ownership.Share) error {
	start := time.Now()
	waited := o.awaitReconciles(ctx, share)
	err := cmp.Or(o.reconciler.set.GiveUp(ctx, share), waited)
	o.reconciler.metrics.GaveUpShare(ctx, time.Since(start))
	ctrl.LoggerFrom(ctx).V(1).Info("Gave up extensions", "took", time.Since(start))
	return err
}
