package clustercache

import (
	"context"
	"sync"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
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
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/informed"
	"github.com/latchkey-dev/latchkey/internal/metrics"
)

// controllerName is the reconciler's name in logs and metrics.
const controllerName = "clustercache"

// reconciler is the one owner of all accessors.
type reconciler struct {
	object   client.Object // an example of the kind
	kind     schema.GroupKind
	objects  informed.Reader // a cache
	scheme   *runtime.Scheme
	resolver credential.Resolver
	allow    func(context.Context, client.Object, types.NamespacedName) error
	labelled func(client.Object) bool // whether it may be ours, by its label; cheap
	wants    func(client.Object) bool // whether it is ours
	set      *accessor.Set

	references references // of extensions to ServiceAccounts
	forbidden  forbidden  // extensions that wait for a permission of the host operator's

	beside func(context.Context) // runs beside the set, if not nil
	// set when the controller starts, before the first Reconcile
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func (r *reconciler) addTo(mgr manager.Manager, where cluster.Cluster, options controller.Options) error {
	options.Reconciler = r
	c, err := controller.New(controllerName, mgr, options)
	if err != nil {
		return err
	}
	// First, so that the queue is there when anything is woken.
	if err := c.Watch(source.Func(func(_ context.Context,
		queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		r.queue = queue
		return nil
	})); err != nil {
		return err
	}
	if err := c.Watch(source.Kind(where.GetCache(), r.object, &handler.EnqueueRequestForObject{},
		r.mayBeOurs())); err != nil {
		return err
	}
	if r.resolver.UsesServiceAccounts() {
		serviceAccounts := &metav1.PartialObjectMetadata{}
		serviceAccounts.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceAccount"))
		if err := c.Watch(source.Kind(where.GetCache(), client.Object(serviceAccounts),
			r.whenServiceAccounts())); err != nil {
			return err
		}
	}
	// Runs where the controller runs, and ends with it.
	like, ok := c.(manager.LeaderElectionRunnable)
	return mgr.Add(runnableLike{run: r.run, leaderElection: !ok || like.NeedLeaderElection()})
}

// run runs the set, and what it needs beside it, until ctx is done.
func (r *reconciler) run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { r.resolver.Run(ctx, r.wake) })
	running.Go(func() { r.watchPermissions(ctx) })
	if r.beside != nil {
		running.Go(func() { r.beside(ctx) })
	}
	defer running.Wait()
	return r.set.Run(ctx)
}

// runnableLike runs on the same replicas as the controller.
type runnableLike struct {
	run            func(context.Context) error
	leaderElection bool
}

func (r runnableLike) Start(ctx context.Context) error { return r.run(ctx) }
func (r runnableLike) NeedLeaderElection() bool        { return r.leaderElection }

// wake is called by accessors. They exist only after the controller has started.
func (r *reconciler) wake(key client.ObjectKey) { r.queue.Add(reconcile.Request{NamespacedName: key}) }

// mayBeOurs drops what others work on, before it is queued. What was ours, and is not any more, is
// let through.
func (r *reconciler) mayBeOurs() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return r.labelled(e.Object) },
		UpdateFunc:  func(e event.UpdateEvent) bool { return r.labelled(e.ObjectOld) || r.labelled(e.ObjectNew) },
		GenericFunc: func(e event.GenericEvent) bool { return r.labelled(e.Object) },
	}
}

// whenServiceAccounts handles ServiceAccounts. One that comes may have many waiting for it, which
// then do not all connect at once; when it changes or goes, nobody waits.
func (r *reconciler) whenServiceAccounts() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
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

// extensionsOf maps a ServiceAccount that came, changed or went to the extensions that name it.
func (r *reconciler) extensionsOf(serviceAccount client.Object) (requests []ctrl.Request) {
	for _, extension := range r.references.of(client.ObjectKeyFromObject(serviceAccount)) {
		requests = append(requests, ctrl.Request{NamespacedName: extension})
	}
	return requests
}

// Reconcile says what the extension is to connect as. It decides and returns: it reads caches and
// never dials.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	// The set keeps the informer's own object, which is not changed: a copy for each extension
	// would double what they take.
	shared := r.object.DeepCopyObject().(client.Object)
	if err := r.objects.Get(ctx, req.NamespacedName, shared, client.UnsafeDisableDeepCopy); err != nil {
		switch {
		case apierrors.IsNotFound(err):
			r.forget(req.NamespacedName, Deleted)
			return reconcile.Result{}, nil
		case !apierrors.IsForbidden(err):
			return reconcile.Result{}, errors.Wrap(err, "reading the extension")
		}
		// watchPermissions says so, once. What is connected goes on by what the extension was last:
		// it is probed, and ends with its ServiceAccount.
		if shared = r.set.Object(req.NamespacedName); shared == nil {
			return reconcile.Result{RequeueAfter: permissionInterval}, nil
		}
	}
	if shared.GetObjectKind().GroupVersionKind().Empty() { // a typed object; its TypeMeta is not shared
		gvk, err := apiutil.GVKForObject(shared, r.scheme)
		if err != nil {
			return reconcile.Result{}, errors.Wrap(err, "finding out the kind of the extension")
		}
		shared.GetObjectKind().SetGroupVersionKind(gvk)
	}
	object := shared.DeepCopyObject().(client.Object) // the author's functions get it
	wanted, err := r.isWanted(object)
	if !wanted {
		r.forget(req.NamespacedName, Filtered)
		return reconcile.Result{}, err
	}
	resolved, err := r.resolve(ctx, object)
	for _, waiting := range r.forbidden.note(req.NamespacedName, errors.Is(err, credential.ErrOperatorForbidden)) {
		r.wake(waiting) // what was granted for this one will mostly have been granted for all
	}
	return reconcile.Result{RequeueAfter: r.set.Reconcile(shared, resolved, err)}, nil
}

// forget ends the extension's connection and what is kept for it.
func (r *reconciler) forget(key client.ObjectKey, reason accessor.Reason) {
	r.set.Remove(key, reason)
	r.resolver.Forget(key)
	r.references.set(key, types.NamespacedName{})
	r.forbidden.forget(key)
}

// isWanted asks the author's function, which may panic: what tenants write must not keep a
// connection that it should lose.
func (r *reconciler) isWanted(object client.Object) (wanted bool, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			metrics.HandlerPanics.Inc()
			wanted, err = false, errors.Errorf("Options.Filter panicked: %v", cause) // for the log
		}
	}()
	return r.wants(object), nil
}

// resolve asks the author's functions. One that panics has not allowed, and not provided, anything.
func (r *reconciler) resolve(ctx context.Context, object client.Object) (resolved credential.Resolution, err error) {
	panicked := func(cause error) error {
		return accessor.MarkNotAllowed(errors.WithMessage(cause, "Options.AllowIdentity panicked"))
	}
	defer func() {
		if cause := recover(); cause != nil {
			metrics.HandlerPanics.Inc()
			// What it panicked with may be secret, so it is for the log and not for the state.
			ctrl.LoggerFrom(ctx).Error(errors.Errorf("%v", cause), "A function of the host operator panicked", "extension",
				klog.KObj(object))
			resolved, err = credential.Resolution{}, panicked(errors.New("see the host operator's log"))
		}
	}()
	if r.resolver.UsesServiceAccounts() {
		serviceAccount, err := r.resolver.ServiceAccount(object)
		r.references.set(client.ObjectKeyFromObject(object), serviceAccount) // before it is read
		if err != nil {
			return credential.Resolution{}, err
		}
		if err := r.allow(ctx, object, serviceAccount); err != nil {
			return credential.Resolution{ServiceAccount: serviceAccount, Source: "serviceaccount " + serviceAccount.String()},
				accessor.MarkNotAllowed(errors.WithMessagef(err, "acting as serviceaccount %s", serviceAccount))
		}
	}
	panicked = func(cause error) error {
		return errors.Wrapf(credential.ErrInvalidCredential, "Options.Credentials panicked: %v", cause)
	}
	return r.resolver.Resolve(ctx, object)
}
