package clustercache

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/informed"
	"github.com/latchkey-dev/latchkey/internal/metrics"
)

// reconciler is the only owner of all accessors.
type reconciler struct {
	object   client.Object // an example of the kind
	kind     schema.GroupKind
	resource schema.GroupResource // of the extensions
	objects  informed.Reader      // a cache
	scheme   *runtime.Scheme
	resolver identity.Resolver
	allow    func(context.Context, client.Object, types.NamespacedName) error
	hasLabel func(client.Object) bool // whether the label selects the object; cheap
	matches  func(client.Object) bool // whether label and filter select the object
	set      *accessor.Set
	owner    *owner // nil if all extensions are this replica's
	metrics  *metrics.Cache
	ended    func() // called when nothing runs any more

	initialPass *initialPass
	references  references // from extensions to ServiceAccounts
	forbidden   forbidden  // extensions that wait until the host operator has a permission

	runAlongside func(context.Context) // runs concurrently with the set, if not nil
	// set when the controller starts, before the first Reconcile
	queue atomic.Pointer[queue]
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func (r *reconciler) addTo(mgr manager.Manager, host cluster.Cluster, name string,
	options controller.Options) error {
	options.Reconciler = r
	c, err := controller.New(name, mgr, options)
	if err != nil {
		return err
	}
	// This watch is first, so that the queue exists before the first wake.
	if err := c.Watch(source.Func(func(_ context.Context, q queue) error {
		r.queue.Store(&q)
		return nil
	})); err != nil {
		return err
	}
	if err := c.Watch(trackingSource{source.Kind(host.GetCache(), r.object,
		handler.EventHandler(trackingHandler{&handler.EnqueueRequestForObject{}, r.initialPass}),
		r.watchFilterPredicate()), r.initialPass}); err != nil {
		return err
	}
	if r.resolver.UsesServiceAccounts() {
		serviceAccounts := &metav1.PartialObjectMetadata{}
		serviceAccounts.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceAccount"))
		if err := c.Watch(source.Kind(host.GetCache(), client.Object(serviceAccounts),
			r.serviceAccountHandler())); err != nil {
			return err
		}
	}
	// The set runs on the replicas where the controller runs, and ends with it.
	runnable, ok := c.(manager.LeaderElectionRunnable)
	return mgr.Add(electionRunnable{run: r.run, leaderElection: !ok || runnable.NeedLeaderElection()})
}

// run runs the set, and the goroutines that it needs, until ctx is done.
func (r *reconciler) run(ctx context.Context) error {
	defer r.ended()
	var running sync.WaitGroup
	defer running.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	running.Go(func() { r.resolver.Run(ctx, r.wake) })
	running.Go(func() { r.watchPermissions(ctx) })
	if r.runAlongside != nil {
		running.Go(func() { r.runAlongside(ctx) })
	}
	if r.owner != nil {
		return r.owner.run(ctx)
	}
	return r.set.Run(ctx)
}

// electionRunnable runs on the same replicas as the controller.
type electionRunnable struct {
	run            func(context.Context) error
	leaderElection bool
}

func (r electionRunnable) Start(ctx context.Context) error { return r.run(ctx) }
func (r electionRunnable) NeedLeaderElection() bool        { return r.leaderElection }

// wake enqueues a Reconcile of the extension. Before the controller has started there is nothing to
// do: the controller begins with all extensions.
func (r *reconciler) wake(key client.ObjectKey) {
	if q := r.queue.Load(); q != nil {
		(*q).Add(reconcile.Request{NamespacedName: key})
	}
}

// watchFilterPredicate drops events of other operators' extensions before they are queued. Events
// of an extension that was ours until now pass.
func (r *reconciler) watchFilterPredicate() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return r.hasLabel(e.Object) },
		UpdateFunc:  func(e event.UpdateEvent) bool { return r.hasLabel(e.ObjectOld) || r.hasLabel(e.ObjectNew) },
		GenericFunc: func(e event.GenericEvent) bool { return r.hasLabel(e.Object) },
	}
}

// serviceAccountHandler handles events of ServiceAccounts. Many extensions may wait for a
// ServiceAccount that is created, so they connect with a delay instead of all at once. After a
// change or a deletion of a ServiceAccount, its extensions reconcile without a delay.
func (r *reconciler) serviceAccountHandler() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			waiters := r.extensionsOf(e.Object)
			for _, request := range waiters {
				q.AddAfter(request, accessor.WakeDelay(len(waiters)))
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			for _, request := range r.extensionsOf(e.ObjectNew) {
				q.Add(request)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			for _, request := range r.extensionsOf(e.Object) {
				q.Add(request)
			}
		},
	}
}

// extensionsOf maps a created, changed or deleted ServiceAccount to the extensions that name it.
func (r *reconciler) extensionsOf(serviceAccount client.Object) (requests []ctrl.Request) {
	for _, extension := range r.references.extensionsOf(client.ObjectKeyFromObject(serviceAccount)) {
		requests = append(requests, ctrl.Request{NamespacedName: extension})
	}
	return requests
}

// Reconcile passes to the set the identity that the extension is to connect as. Reconcile reads
// caches and never dials.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	read := true
	defer func() {
		if read {
			r.initialPass.reconciled(req.NamespacedName)
		}
	}()
	if leads := r.owner.leads(); leads != nil && !leads() {
		r.set.LeaseEnded(req.NamespacedName)
		r.forget(req.NamespacedName)
		return reconcile.Result{}, nil // Take wakes it
	}
	// The set keeps the informer's own object, which stays unchanged: a copy for each extension
	// would double the memory of the extensions.
	shared := r.object.DeepCopyObject().(client.Object)
	if err := r.objects.Get(ctx, req.NamespacedName, shared, client.UnsafeDisableDeepCopy); err != nil {
		switch {
		case apierrors.IsNotFound(err):
			r.set.Remove(req.NamespacedName, accessor.Deleted)
			r.forget(req.NamespacedName)
			return reconcile.Result{}, nil
		case !apierrors.IsForbidden(err):
			read = false
			return reconcile.Result{}, errors.Wrap(err, "reading the extension")
		}
		// watchPermissions logs the missing permission, once. A connected extension continues by
		// its last known object: it is probed, and disconnects when its ServiceAccount goes away.
		if shared = r.set.Object(req.NamespacedName); shared == nil {
			read = false
			return reconcile.Result{RequeueAfter: permissionInterval}, nil
		}
	}
	if shared.GetObjectKind().GroupVersionKind().Empty() { // a typed object; its TypeMeta is not shared with the informer
		gvk, err := apiutil.GVKForObject(shared, r.scheme)
		if err != nil {
			return reconcile.Result{}, errors.Wrap(err, "determining the kind of the extension")
		}
		shared.GetObjectKind().SetGroupVersionKind(gvk)
	}
	object := shared.DeepCopyObject().(client.Object) // Filter, AllowIdentity and Credentials get this copy
	wanted, err := r.isWanted(ctx, object)
	if !wanted {
		r.set.Remove(req.NamespacedName, accessor.Filtered)
		r.forget(req.NamespacedName)
		r.owner.forgotten(object)
		return reconcile.Result{}, err
	}
	var term *fence.Term // nil for any time
	if r.owner != nil {
		defer r.owner.reconciling(shared)() // before the engine is asked
		owned := false
		switch term, owned = r.owner.term(object); {
		case !owned && !r.owner.shares():
			r.set.LeaseEnded(req.NamespacedName)
			r.forget(req.NamespacedName)
			return reconcile.Result{}, nil // Take wakes it
		case !owned:
			r.set.RemoveNotOwned(object)
			r.forget(req.NamespacedName)
			return reconcile.Result{}, nil // Take wakes it
		}
	}
	resolution, err := r.resolve(ctx, object)
	for _, waiting := range r.forbidden.note(req.NamespacedName, errors.Is(err, identity.ErrOperatorForbidden)) {
		r.wake(waiting) // a permission granted for this extension is usually granted for all
	}
	return reconcile.Result{RequeueAfter: r.set.Reconcile(shared, resolution, err, term)}, nil
}

// forget removes what the reconciler knows of an extension whose connection has ended.
func (r *reconciler) forget(key client.ObjectKey) {
	r.resolver.Forget(key)
	r.references.set(key, types.NamespacedName{})
	r.forbidden.forget(key)
}
