package serviceprovider

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/internal/objectlist"
)

// workers is the default of MaxConcurrentReconciles: a tenant's server that hangs delays only those
// who wait for its worker.
const workers = 10

// SetupWithManager adds the controller of the API objects to the manager, which must also run the
// onboarding cluster. name is the name of the controller, unique in the process, usually the
// provider's.
//
// The controller receives the config from providerConfigUpdates: an event without an Object means
// that there is none. A ConfigReconciler sends them. The channel may be nil if ProviderConfig was
// set.
func (r *APIReconciler[T, C]) SetupWithManager(mgr ctrl.Manager, name string,
	providerConfigUpdates chan event.GenericEvent) error {
	if _, _, known := r.current.get(); !known && providerConfigUpdates == nil {
		return errors.New("the API reconciler would never have a config: call ProviderConfig of its builder, or give " +
			"SetupWithManager the channel of a ConfigReconciler")
	}
	list, err := objectlist.New(r.settings.empty(), r.settings.onboarding.GetScheme())
	if err != nil {
		return errors.Wrap(err, "the kind of the API objects and its list must be in the scheme of the onboarding cluster")
	}
	options := r.settings.options
	options.Reconciler = r
	if options.MaxConcurrentReconciles == 0 {
		options.MaxConcurrentReconciles = cmp.Or(mgr.GetControllerOptions().MaxConcurrentReconciles, workers)
	}
	c, err := controller.New(name, mgr, options)
	if err != nil {
		return errors.Wrapf(err, "adding the controller %q", name)
	}
	all := &enqueueAll{cache: r.settings.onboarding.GetCache(), list: list}
	sources := []source.Source{source.Kind(r.settings.onboarding.GetCache(), client.Object(r.settings.empty()),
		&handler.EnqueueRequestForObject{}, objectChanged)}
	if providerConfigUpdates != nil {
		sources = append(sources, source.Func(func(ctx context.Context, queue queue) error {
			go r.receiveConfig(ctx, providerConfigUpdates, func() { all.enqueue(ctx, queue) })
			return nil
		}))
	}
	if builtIn, ok := builtInAccess(r.settings.access); ok {
		if err := builtIn.bind(c); err != nil {
			return err
		}
		sources = append(sources, builtIn.sources()...)
	}
	for _, kind := range r.platformKinds() {
		src, err := kind.source(mgr, r.settings.platform, all)
		if err != nil {
			return errors.Wrapf(err, "preparing to watch the objects of %s", kind.option)
		}
		if src != nil {
			sources = append(sources, src)
		}
		if isWatcher := kind.isReferenced != nil; isWatcher != (kind.namespace != "") {
			mgr.GetLogger().Info("Objects of the platform cluster are not watched: that needs a namespace, and a Reconciler "+
				"that implements the interface for the type of the config", "controller", name, "option", kind.option,
				"namespace", kind.namespace, "interface", kind.watcher, "isImplemented", isWatcher)
		}
	}
	for _, src := range sources {
		if err := c.Watch(src); err != nil {
			return errors.Wrap(err, "watching")
		}
	}
	return nil
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// objectChanged drops the events that the runtime's own writes cause.
var objectChanged = predicate.Or[client.Object](predicate.GenerationChangedPredicate{},
	predicate.LabelChangedPredicate{}, predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return isAnnotated(e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations()) ||
				lostFinalizer(e.ObjectOld, e.ObjectNew)
		},
	})

// lostFinalizer reports whether somebody removed the finalizer of an API object.
func lostFinalizer(before, after client.Object) bool {
	api, ok := after.(API)
	return ok && after.GetDeletionTimestamp().IsZero() && controllerutil.ContainsFinalizer(before, api.Finalizer()) &&
		!controllerutil.ContainsFinalizer(after, api.Finalizer())
}

// isAnnotated reports whether a person, or another controller, changed the annotations of an API
// object.
func isAnnotated(before, after map[string]string) bool {
	before, after = merged(before, nil), merged(after, nil)
	if _, asked := after[OperationAnnotation]; !asked && before[OperationAnnotation] == OperationReconcile {
		delete(before, OperationAnnotation)
	}
	for _, ours := range []string{usedAnnotation, removedAnnotation} {
		delete(before, ours)
		delete(after, ours)
	}
	return !maps.Equal(before, after)
}

// receiveConfig takes over each config until ctx is done, and then calls changed.
func (r *APIReconciler[T, C]) receiveConfig(ctx context.Context, updates <-chan event.GenericEvent, changed func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case e, open := <-updates:
			if !open {
				return
			}
			if r.takeConfig(ctx, e) {
				changed()
			}
		}
	}
}

// takeConfig replaces the config, and reports whether the event was one.
func (r *APIReconciler[T, C]) takeConfig(ctx context.Context, e event.GenericEvent) bool {
	var none C
	if isNil(e.Object) {
		r.current.set(none, false)
		return true
	}
	config, ok := e.Object.(C)
	if !ok {
		ctrl.LoggerFrom(ctx).Error(errors.Errorf("the event has a %T, not a %T", e.Object, none),
			"Ignored an update of the ProviderConfig")
		return false
	}
	r.current.set(config.DeepCopyObject().(C), true)
	return true
}

// enqueueAll requests a reconcile of every API object.
type enqueueAll struct {
	cache cache.Cache
	list  client.ObjectList // empty; an example
}

// retryList is how long to wait after a failed list of the API objects.
const retryList = time.Second

// enqueue lists the API objects in the cache and adds them to the queue. enqueue tries until the
// list succeeds or ctx is done.
func (a *enqueueAll) enqueue(ctx context.Context, queue queue) {
	for {
		err := a.tryEnqueue(ctx, queue)
		if err == nil || ctx.Err() != nil {
			return
		}
		ctrl.LoggerFrom(ctx).Error(err, "Listing the API objects failed; trying again")
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryList):
		}
	}
}

func (a *enqueueAll) tryEnqueue(ctx context.Context, queue queue) error {
	list := a.list.DeepCopyObject().(client.ObjectList)
	if err := a.cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	return meta.EachListItem(list, func(item runtime.Object) error {
		object, err := meta.Accessor(item)
		if err == nil {
			queue.Add(reconcile.Request{NamespacedName: client.ObjectKey{
				Namespace: object.GetNamespace(),
				Name:      object.GetName(),
			}})
		}
		return err
	})
}

// when returns an event handler that requests a reconcile of every API object after events for
// which concerns returns true.
func (a *enqueueAll) when(concerns func(context.Context, client.Object) bool) handler.EventHandler {
	on := func(ctx context.Context, q queue, objects ...client.Object) {
		if slices.ContainsFunc(objects, func(object client.Object) bool { return concerns(ctx, object) }) {
			a.enqueue(ctx, q)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { on(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
				on(ctx, q, e.ObjectOld, e.ObjectNew) // one of them may have a label that the author looks for
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { on(ctx, q, e.Object) },
	}
}
