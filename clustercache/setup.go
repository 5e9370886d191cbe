package clustercache

import (
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/accessor/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
)

// ClusterExtensionGVK is the default kind of extensions.
var ClusterExtensionGVK = schema.GroupVersionKind{Group: "olm.operatorframework.io", Version: "v1", Kind: "ClusterExtension"}

// controllerName is the reconciler's name in logs and metrics.
const controllerName = "clustercache"

// Options configure SetupWithManager. Required are Client.UserAgent and, for cluster-scoped kinds, AllowIdentity.
type Options struct {
	// Object is of the kind whose objects get a connection each. Defaults to an unstructured ClusterExtension.
	Object client.Object
	// Cluster is where those objects, and their ServiceAccounts, live. Defaults to the manager. Another one must
	// have been added to the manager.
	Cluster cluster.Cluster
	// Scheme of the connections. Defaults to Cluster's.
	Scheme *runtime.Scheme
	// Credentials says whom an object acts as. Defaults to credential.ServiceAccountTokens.
	Credentials credential.Provider
	// AllowIdentity says whether an object may act as that ServiceAccount; an error means no and becomes the
	// Message of the state. It is called on every reconcile and must not do I/O.
	//
	// Namespaced kinds default to "its own namespace". Cluster-scoped kinds have no such default: without a
	// guard, whoever may write an extension could act as any ServiceAccount, so nil is refused. GuardedByAdmission
	// states that an admission policy guards them. Credentials that name no ServiceAccount are not asked about.
	AllowIdentity func(ctx context.Context, object client.Object, serviceAccount types.NamespacedName) error
	// Cache configures the cache of every connection.
	Cache CacheOptions
	// Client configures the clients of every connection.
	Client ClientOptions
	// HealthProbe says how often to probe and when to give up.
	HealthProbe healthprobe.Options
	// ConnectBackoff is the wait between connects that fail. Defaults to 30 s, doubled up to 5 min, plus up to a
	// fifth of jitter. A ServiceAccount or target that is seen again ends the wait.
	ConnectBackoff wait.Backoff
}

// GuardedByAdmission is an AllowIdentity that allows everything. It states that the API server lets nobody name a
// ServiceAccount that they may not act as, by the policy in config/admission or the like.
func GuardedByAdmission(context.Context, client.Object, types.NamespacedName) error { return nil }

// ownNamespaceOnly is the AllowIdentity of namespaced kinds.
func ownNamespaceOnly(_ context.Context, object client.Object, serviceAccount types.NamespacedName) error {
	if object.GetNamespace() == serviceAccount.Namespace {
		return nil
	}
	return errors.Errorf("it may only name a ServiceAccount of its own namespace %q, not %s", object.GetNamespace(), serviceAccount)
}

func (o *Options) setDefaults(mgr manager.Manager) {
	if o.Object == nil {
		extension := &unstructured.Unstructured{}
		extension.SetGroupVersionKind(ClusterExtensionGVK)
		o.Object = extension
	}
	if o.Cluster == nil {
		o.Cluster = mgr
	}
	if o.Scheme == nil {
		o.Scheme = o.Cluster.GetScheme()
	}
	if o.Credentials == nil {
		o.Credentials = credential.ServiceAccountTokens(credential.ServiceAccountOptions{})
	}
	if o.Client.Timeout == 0 {
		o.Client.Timeout = 10 * time.Second
	}
	if o.Client.QPS == 0 {
		o.Client.QPS = 20
	}
	if o.Client.Burst == 0 {
		o.Client.Burst = 30
	}
	o.HealthProbe = o.HealthProbe.WithDefaults()
	if o.ConnectBackoff == (wait.Backoff{}) {
		o.ConnectBackoff = wait.Backoff{Duration: 30 * time.Second, Factor: 2, Jitter: 0.2, Steps: 20, Cap: 5 * time.Minute}
	}
}

func (o *Options) validate() error {
	switch {
	case o.Client.UserAgent == "":
		return errors.New("Options.Client.UserAgent must be set: it is how API servers' logs name the host operator")
	case o.Client.Timeout < 0 || o.Client.QPS < 0 || o.Client.Burst < 0:
		return errors.New("Options.Client: Timeout, QPS and Burst must not be negative")
	case o.HealthProbe.Interval < 0 || o.HealthProbe.IdentityInterval < 0 || o.HealthProbe.Timeout < 0 || o.HealthProbe.FailureThreshold < 0:
		return errors.New("Options.HealthProbe: no field may be negative")
	}
	return nil
}

// guard returns the AllowIdentity to use.
func (o *Options) guard(resolver credential.Resolver) (func(context.Context, client.Object, types.NamespacedName) error, error) {
	if o.AllowIdentity != nil || !resolver.UsesServiceAccounts() {
		return o.AllowIdentity, nil
	}
	namespaced, err := apiutil.IsObjectNamespaced(o.Object, o.Cluster.GetScheme(), o.Cluster.GetRESTMapper())
	if err != nil {
		return nil, errors.Wrapf(err, "finding out whether %T is namespaced (is its CustomResourceDefinition installed?)", o.Object)
	}
	if !namespaced {
		return nil, errors.New("Options.AllowIdentity must be set for a cluster-scoped kind: whoever may write an extension could act as any " +
			"ServiceAccount. Install the policy in config/admission and set GuardedByAdmission, or decide yourself")
	}
	return ownNamespaceOnly, nil
}

// SetupWithManager adds a reconciler to the manager and returns the ClusterCache that it serves. The reconciler
// runs on the replica that leads; elsewhere, and before the manager starts, nothing is connected. ctx is used
// while setting up only; the manager's end ends everything.
//
// It fails on options that cannot work, and where it must know whether the kind is namespaced and the API server
// does not tell.
func SetupWithManager(_ context.Context, mgr manager.Manager, options Options, controllerOptions controller.Options) (ClusterCache, error) {
	options.setDefaults(mgr)
	if err := options.validate(); err != nil {
		return nil, err
	}
	resolver, err := options.Credentials.Bind(options.Cluster)
	if err != nil {
		return nil, errors.WithMessage(err, "Options.Credentials")
	}
	allow, err := options.guard(resolver)
	if err != nil {
		return nil, err
	}

	r := &reconciler{
		object:   options.Object,
		objects:  options.Cluster.GetCache(),
		scheme:   options.Cluster.GetScheme(),
		resolver: resolver,
		allow:    allow,
	}
	sources := &sources{}
	r.set = accessor.NewSet(accessor.Options{
		Scheme: options.Scheme, Cache: options.Cache, Client: options.Client, HealthProbe: options.HealthProbe, ConnectBackoff: options.ConnectBackoff,
		Logger: mgr.GetLogger().WithName(controllerName),
		Wake:   r.wake, Changed: sources.changed,
	})
	if err := r.addTo(mgr, options.Cluster, controllerOptions); err != nil {
		return nil, errors.WithMessage(err, "adding the clustercache reconciler to the manager")
	}
	return &clusterCache{set: r.set, sources: sources}, nil
}

// reconciler is the one owner of all accessors.
type reconciler struct {
	object   client.Object // an example of the kind
	objects  client.Reader // a cache
	scheme   *runtime.Scheme
	resolver credential.Resolver
	allow    func(context.Context, client.Object, types.NamespacedName) error
	set      *accessor.Set
	queue    workqueue.TypedRateLimitingInterface[reconcile.Request] // set when the controller starts, before the first Reconcile
}

// serviceAccountIndex indexes extensions by the ServiceAccount they name.
const serviceAccountIndex = "latchkey.dev/serviceAccount"

func (r *reconciler) addTo(mgr manager.Manager, where cluster.Cluster, options controller.Options) error {
	options.Reconciler = r
	c, err := controller.New(controllerName, mgr, options)
	if err != nil {
		return err
	}
	// First, so that the queue is there when anything is woken.
	if err := c.Watch(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		r.queue = queue
		return nil
	})); err != nil {
		return err
	}
	if err := c.Watch(source.Kind(where.GetCache(), r.object, &handler.EnqueueRequestForObject{})); err != nil {
		return err
	}
	if r.resolver.UsesServiceAccounts() {
		index := func(object client.Object) []string {
			serviceAccount, err := r.resolver.ServiceAccount(object)
			if err != nil {
				return nil // it names none
			}
			return []string{serviceAccount.String()}
		}
		if err := where.GetFieldIndexer().IndexField(context.Background(), r.object, serviceAccountIndex, index); err != nil {
			return errors.Wrap(err, "indexing extensions by ServiceAccount")
		}
		serviceAccounts := &metav1.PartialObjectMetadata{}
		serviceAccounts.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceAccount"))
		if err := c.Watch(source.Kind(where.GetCache(), client.Object(serviceAccounts), handler.EnqueueRequestsFromMapFunc(r.extensionsOf))); err != nil {
			return err
		}
	}
	// Runs where the controller runs, and ends with it.
	return mgr.Add(leaderRunnable{run: r.set.Run, leaderElection: options.NeedLeaderElection})
}

// leaderRunnable runs on the leader only, unless the controller is told otherwise.
type leaderRunnable struct {
	run            func(context.Context) error
	leaderElection *bool
}

func (l leaderRunnable) Start(ctx context.Context) error { return l.run(ctx) }
func (l leaderRunnable) NeedLeaderElection() bool {
	return l.leaderElection == nil || *l.leaderElection
}

// wake is called by accessors. They exist only after the controller has started.
func (r *reconciler) wake(key client.ObjectKey) { r.queue.Add(reconcile.Request{NamespacedName: key}) }

// extensionsOf maps a ServiceAccount that came, changed or went to the extensions that name it. It reads the cache,
// which is updated before handlers are called, so an extension that is not there yet has its own event to come.
func (r *reconciler) extensionsOf(ctx context.Context, serviceAccount client.Object) []ctrl.Request {
	gvk, err := apiutil.GVKForObject(r.object, r.scheme)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing the extensions of a ServiceAccount")
		return nil
	}
	gvk.Kind += "List"
	list, err := newList(r.object, gvk, r.scheme)
	if err == nil {
		err = r.objects.List(ctx, list, client.MatchingFields{serviceAccountIndex: client.ObjectKeyFromObject(serviceAccount).String()}, client.UnsafeDisableDeepCopy)
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing the extensions of a ServiceAccount", "serviceAccount", client.ObjectKeyFromObject(serviceAccount))
		return nil
	}
	return requestsFor(list)
}

// Reconcile says what the extension is to connect as. It decides and returns: it reads caches and never dials.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	object := r.object.DeepCopyObject().(client.Object)
	if err := r.objects.Get(ctx, req.NamespacedName, object); err != nil {
		if apierrors.IsNotFound(err) {
			r.set.Remove(req.NamespacedName, Deleted)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, errors.Wrap(err, "reading the extension")
	}
	resolved, err := r.resolve(ctx, object)
	return reconcile.Result{RequeueAfter: r.set.Reconcile(object, resolved, err)}, nil
}

func (r *reconciler) resolve(ctx context.Context, object client.Object) (credential.Resolved, error) {
	if r.resolver.UsesServiceAccounts() {
		serviceAccount, err := r.resolver.ServiceAccount(object)
		if err != nil {
			return credential.Resolved{}, err
		}
		if err := r.allow(ctx, object, serviceAccount); err != nil {
			return credential.Resolved{}, accessor.MarkNotAllowed(errors.WithMessagef(err, "acting as serviceaccount %s", serviceAccount))
		}
	}
	return r.resolver.Resolve(ctx, object)
}
