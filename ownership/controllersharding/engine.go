package controllersharding

import (
	"context"
	"encoding/json"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/holding"
	"github.com/latchkey-dev/latchkey/ownership"
)

var _ ownership.Engine = (*Engine)(nil)

// drainsAtOnce is how many extensions are given up at the same time: a handler that hangs delays
// one of them.
const drainsAtOnce = 16

// Engine has the extensions whose label names this shard. New returns an Engine, for one
// ClusterCache. Its methods may be called from any goroutine.
type Engine struct {
	options Options
	leases  coordinationclient.LeasesGetter
	bound   atomic.Bool                // Check was called
	begun   atomic.Bool                // Run was called
	api     client.Client              // without a cache
	kind    schema.GroupKind           // set by Check
	listed  atomic.Pointer[listing]    // since the Lease is held
	process string                     // in which the engine runs; see processAnnotation
	term    atomic.Pointer[fence.Term] // in which the Lease is held, and the extensions are listed; nil otherwise
	drains  workqueue.TypedRateLimitingInterface[types.UID]

	mu       sync.Mutex
	draining map[types.UID]drain // guarded by mu; the last version of what is in drains
}

// drain is a version of an extension that the sharder asks this shard to give up.
type drain struct {
	gvk             schema.GroupVersionKind
	key             client.ObjectKey
	uid             types.UID
	resourceVersion string
}

// Kind implements ownership.Engine.
func (*Engine) Kind() ownership.Kind { return ownership.Shared }

// Check implements ownership.Engine. The sharder never moves cluster-scoped objects, so they are
// refused.
func (e *Engine) Check(kind schema.GroupKind, namespaced bool) error {
	if !namespaced {
		return errors.Errorf("%s is cluster-scoped, and kubernetes-controller-sharding labels cluster-scoped objects but "+
			"never moves them (its issue 680): the extensions of a shard that ended would stay without one. Use package "+
			"buckets", kind)
	}
	if !e.bound.CompareAndSwap(false, true) {
		return errors.New("an Engine is for one ClusterCache")
	}
	e.kind = kind
	return nil
}

// Owns implements ownership.Engine. An extension that is to be given up is not this shard's any
// more.
func (e *Engine) Owns(extension client.Object) (term *fence.Term, owned bool) {
	labels := extension.GetLabels()
	if labels[e.options.shardLabel()] != e.options.Shard {
		return nil, false
	}
	term = e.term.Load()
	if term == nil {
		return nil, false
	}
	if _, drains := labels[e.options.drainLabel()]; drains {
		e.note(drain{extension.GetObjectKind().GroupVersionKind(), client.ObjectKeyFromObject(extension),
			extension.GetUID(), extension.GetResourceVersion()})
		return nil, false
	}
	if e.drainsLater(extension) {
		return nil, false
	}
	if listed := e.listed.Load(); listed == nil || !listed.confirms(extension) {
		return nil, false // what the cache has may be from before the Lease was lost; the next event decides
	}
	return term, true
}

// drainsLater reports whether a later version of an extension is to be given up. Otherwise
// drainsLater forgets that an earlier one was.
func (e *Engine) drainsLater(extension client.Object) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	d, drains := e.draining[extension.GetUID()]
	if !drains {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(extension.GetResourceVersion(), d.resourceVersion)
	if err == nil && order < 0 {
		return true
	}
	delete(e.draining, d.uid)
	return false
}

// forgetOthers forgets the extensions that were to be given up when the Lease was lost, and are
// another shard's by now.
func (e *Engine) forgetOthers() {
	listed := e.listed.Load()
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.draining, func(uid types.UID, _ drain) bool {
		_, mine := listed.versions[uid]
		return !mine
	})
}

// note puts an extension into the queue. Each has one place there, however often it changes.
func (e *Engine) note(d drain) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.draining[d.uid] = d
	e.drains.Add(d.uid)
}

// last returns the last version of an extension in the queue.
func (e *Engine) last(uid types.UID) (d drain, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d, ok = e.draining[uid]
	return d, ok
}

// drained forgets a version of an extension.
func (e *Engine) drained(d drain) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.draining[d.uid] == d {
		delete(e.draining, d.uid)
	}
}

// Run implements ownership.Engine. Run holds the shard's Lease, and takes the shard's extensions
// whenever it has it.
func (e *Engine) Run(ctx context.Context, replica ownership.Replica) error {
	if !e.begun.CompareAndSwap(false, true) {
		return errors.New("an Engine runs once")
	}
	logger := ctrl.LoggerFrom(ctx).WithValues("ring", e.options.Ring, "shard", e.options.Shard)
	ctx = ctrl.LoggerInto(ctx, logger)
	var draining sync.WaitGroup
	for range drainsAtOnce {
		draining.Go(func() { e.drainAll(ctx, replica) })
	}
	defer draining.Wait()
	defer e.drains.ShutDown()
	// A Lease that is released and taken again would make the sharder move extensions without a drain.
	options := holding.Options{Times: e.options.times(), Keep: holding.KeepLost}
	for ctx.Err() == nil {
		held := holding.Hold(ctx, options, e.lock(), func(holds context.Context, term *fence.Term) {
			if !e.list(holds) {
				return
			}
			e.forgetOthers()
			e.term.Store(term)
			if err := replica.Take(holds, all); err != nil && holds.Err() == nil {
				logger.Info("Not all extensions of the shard could be tried yet", "error", err.Error())
			}
			logger.Info("Serves its extensions")
			<-holds.Done()
			e.term.Store(nil)
			giving, cancel := context.WithTimeout(context.WithoutCancel(ctx), holding.GiveUpTimeout)
			defer cancel()
			if err := replica.GiveUp(giving, all); err != nil {
				logger.Info("The shard is given up while something still runs for it", "error", err.Error())
			}
			logger.Info("Gave up its extensions", "reason", context.Cause(holds).Error())
		})
		if !held {
			select {
			case <-ctx.Done():
			case <-time.After(e.options.RetryPeriod):
			}
		}
	}
	return nil
}

// all is the share of a replica that has, or loses, everything it can have.
func all(client.Object) bool { return true }

// drainAll gives up extensions that the sharder wants to move, until the queue ends.
func (e *Engine) drainAll(ctx context.Context, replica ownership.Replica) {
	for {
		uid, ended := e.drains.Get()
		if ended {
			return
		}
		if d, ok := e.last(uid); ok {
			switch err := e.drain(ctx, replica, d); {
			case errors.Is(err, errNotHeld):
				e.drains.Forget(uid) // when the Lease is held again, Take leads here with the same version
			case err != nil && ctx.Err() == nil:
				ctrl.LoggerFrom(ctx).Info("Cannot give an extension up, or remove its labels, yet",
					"extension", klog.KRef(d.key.Namespace, d.key.Name), "error", err.Error())
				e.drains.AddRateLimited(uid)
			default:
				e.drained(d)
				e.drains.Forget(uid)
			}
		}
		e.drains.Done(uid)
	}
}

// errNotHeld is why the labels of an extension are not removed: this replica does not speak for the
// shard.
var errNotHeld = errors.New("the Lease of the shard is not held")

// drain gives an extension up, and removes both labels in one write, so that the sharder gives it
// to another shard. If the extension has changed, the write fails, and the next event of the
// extension decides.
func (e *Engine) drain(ctx context.Context, replica ownership.Replica, d drain) error {
	mine := func(extension client.Object) bool { return extension.GetUID() == d.uid }
	giving, cancel := context.WithTimeout(ctx, holding.GiveUpTimeout)
	defer cancel()
	if err := replica.GiveUp(giving, mine); err != nil {
		return err // such as a Reconcile that hangs, and may still connect the extension
	}
	if term := e.term.Load(); term == nil || term.Err() != nil {
		return errNotHeld
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": d.uid, "resourceVersion": d.resourceVersion,
		"labels": map[string]any{e.options.shardLabel(): nil, e.options.drainLabel(): nil}}})
	if err != nil {
		return errors.WithStack(err)
	}
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: d.key.Namespace, Name: d.key.Name}}
	object.SetGroupVersionKind(d.gvk)
	err = e.api.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsConflict(err) {
		// It may be this shard's again, and the event that said so may have come before it was given up.
		_ = replica.Take(giving, mine)
		return nil
	}
	return client.IgnoreNotFound(err)
}
