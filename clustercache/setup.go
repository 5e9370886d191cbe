package clustercache

import (
	"context"
	"reflect"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/extensionsource"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/informed"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/statechanges"
	"github.com/latchkey-dev/latchkey/internal/tracing"
	"github.com/latchkey-dev/latchkey/ownership"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// SetupWithManager adds a reconciler to the manager and returns the ClusterCache that the
// reconciler serves. The reconciler runs on the leader only. On other replicas, and before the
// manager starts, no extension is connected. If replicas share the extensions (Options.Ownership),
// the reconciler runs on every replica, and connects the extensions that are the replica's. All
// connections end when the manager ends.
//
// ctx is used only during the call. A manager takes several ClusterCaches with different
// Options.Name. They share the TCP connections to each API server, what is known of its health and
// kinds, and the limits of concurrent connects and probes. Names must differ in the whole process,
// because controller-runtime requires unique names of controllers, unless controllerOptions set
// SkipNameValidation. No other field of controllerOptions needs a value: the reconciler never
// dials, so one worker suffices. controllerOptions.Reconciler is overwritten.
//
// The call sends a request to the API server to discover the kind of the extensions. It fails if
// the options cannot work with the kind. A kind that the API server does not serve, and no answer
// from the API server, are errors too.
func SetupWithManager(ctx context.Context, mgr manager.Manager, options Options,
	controllerOptions controller.Options) (ClusterCache, error) {
	options.setDefaults(mgr)
	if err := options.validate(); err != nil {
		return nil, err
	}
	shared, leave, err := managers.join(mgr, options.Name)
	if err != nil {
		return nil, err
	}
	cc, err := options.setup(ctx, mgr, controllerOptions, shared, leave)
	if err != nil {
		leave()
		return nil, err
	}
	return cc, nil
}

// setup adds the reconciler to the manager. The reconciler calls ended when it has ended.
func (o *Options) setup(ctx context.Context, mgr manager.Manager, controllerOptions controller.Options,
	shared *accessor.Shared, ended func()) (ClusterCache, error) {
	logger := mgr.GetLogger().WithName(o.Name)
	kind, err := o.kind(ctrl.LoggerInto(ctx, logger))
	if err != nil {
		return nil, err
	}
	counts, tracer := metrics.New(o.Name), tracing.New(o.TracerProvider, o.Name)
	resolver, err := o.Credentials.Bind(o.Cluster, kind, counts, tracer)
	if err != nil {
		return nil, errors.WithMessage(err, "Options.Credentials")
	}
	resolver = withOverrides(resolver, o.Scheme, counts, o.Cache.PerExtension)
	allow, err := o.checkGuard(resolver, kind)
	if err != nil {
		return nil, err
	}

	r := &reconciler{
		object:   o.Object,
		objects:  informed.NewReader(o.Cluster.GetCache()),
		scheme:   o.Cluster.GetScheme(),
		resolver: resolver,
		allow:    allow,
		hasLabel: o.hasWatchLabel,
		matches:  o.matches,
		kind:     kind.GroupKind(),
		resource: kind.Resource,
		metrics:  counts,
		ended:    ended,

		initialPass: newInitialPass(),
	}
	if o.Ownership != nil {
		if err := o.Ownership.Check(kind.GroupKind(), kind.Namespaced); err != nil {
			return nil, errors.WithMessage(err, "Options.Ownership")
		}
		if k := o.Ownership.Kind(); k != ownership.OneLeads && k != ownership.Shared {
			return nil, errors.Errorf("Options.Ownership: no such Kind: %d", k)
		}
		r.owner = &owner{engine: o.Ownership, reconciler: r}
		if r.owner.shares() {
			if needs := controllerOptions.NeedLeaderElection; needs != nil && *needs {
				return nil, errors.New("with this Options.Ownership the reconciler runs on every replica: " +
					"leave NeedLeaderElection unset")
			}
			controllerOptions.NeedLeaderElection = new(false) // each replica has its share
		}
	}
	rbacWatcher, err := o.rbacWatcher(mgr, logger)
	if err != nil {
		return nil, errors.WithMessage(err, "Options.Cache.WatchRBAC")
	}
	namespaces, err := o.namespaceWatcher(mgr, logger)
	if err != nil {
		return nil, errors.WithMessage(err, "creating a watcher of namespaces")
	}
	hub := &extensionsource.Hub{Name: o.Name, Metrics: counts}
	states := &statechanges.Hub{}
	r.set = accessor.NewSet(accessor.Options{
		CheckKey:             checkKey(kind),
		Scheme:               o.Scheme,
		Cache:                o.Cache.connections(o.Client.Cache),
		Client:               o.Client.connections(),
		HealthProbe:          connstate.ProbeOptions(o.HealthProbe),
		ConnectBackoff:       o.ConnectBackoff,
		PerExtension:         o.Metrics.PerExtension,
		RBACWatcher:          rbacWatcher,
		Namespaces:           namespaces,
		Logger:               logger,
		Metrics:              counts,
		Tracer:               tracer,
		Shared:               shared,
		Leads:                r.owner.leads(),
		Record:               o.Permissions.Record,
		Muted:                o.Problems.Mute,
		IgnoreMuteAnnotation: o.Problems.IgnoreAnnotation,
		ReplicasShare:        r.owner.shares(),
		Wake:                 r.wake,
		Changed:              hub.Changed,
		States:               states,
	})
	cc := &clusterCache{
		set:         r.set,
		initialPass: r.initialPass.done,
		metrics:     counts,
		sources:     hub,
		states:      states,
		scheme:      r.scheme,
		gvk:         kind.GroupVersionKind,
		goType:      reflect.TypeOf(o.Object),
		referenceOf: resolver.Reference,
	}
	if o.EventRecorder != nil {
		r.runAlongside = func(ctx context.Context) { cc.recordEvents(ctx, o.EventRecorder) }
	}
	if err := r.addTo(mgr, o.Cluster, o.Name, controllerOptions); err != nil {
		return nil, errors.WithMessagef(err, "adding the controller %q to the manager (Options.Name is its name)", o.Name)
	}
	if err := mgr.Add(announcement{counts}); err != nil { // last, so that a call that fails announces nothing
		return nil, errors.WithStack(err)
	}
	return cc, nil
}

// checkKey returns the function that says why no extension of the kind can have a key: without it,
// the reason would be that the extension is unknown, which time may heal.
func checkKey(kind identity.Kind) func(client.ObjectKey) error {
	return func(key client.ObjectKey) error {
		const hint = "use client.ObjectKeyFromObject"
		switch {
		case key.Name == "":
			return connstate.Mistake("the key of an extension has no name: %s", hint)
		case kind.Namespaced && key.Namespace == "":
			return connstate.Mistake("the key %q has no namespace, and %s is namespaced: %s", key.Name, kind.Name(), hint)
		case !kind.Namespaced && key.Namespace != "":
			return connstate.Mistake("the key %q has a namespace, and %s is cluster-scoped: %s", key, kind.Name(), hint)
		}
		return nil
	}
}

// announcement reports in the metrics whether this replica leads, for as long as the manager runs.
type announcement struct{ metrics *metrics.Cache }

// Start implements manager.Runnable.
func (a announcement) Start(ctx context.Context) error {
	defer a.metrics.Announce()()
	<-ctx.Done()
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (announcement) NeedLeaderElection() bool { return false }

// rbacWatcher returns a watcher of RBAC in the cluster of the extensions, or nil without WatchRBAC.
// The watcher acts as the host operator and runs as long as the manager.
func (o *Options) rbacWatcher(mgr manager.Manager, logger logr.Logger) (*scopedcache.RBACWatcher, error) {
	if !o.Cache.WatchRBAC {
		return nil, nil
	}
	informers, scopes := o.ownCache(logger)
	watcher, err := scopedcache.NewRBACWatcher(o.Cluster.GetConfig(), informers, scopes)
	if err != nil {
		return nil, err
	}
	return watcher, mgr.Add(watcher)
}

// namespaceWatcher returns a watcher of the namespaces in the cluster of the extensions. The
// watcher acts as the host operator, runs as long as the manager, and watches from the first set of
// namespaces on.
func (o *Options) namespaceWatcher(mgr manager.Manager, logger logr.Logger) (*scopedcache.NamespaceWatcher, error) {
	informers, scopes := o.ownCache(logger)
	watcher, err := scopedcache.NewNamespaceWatcher(o.Cluster.GetConfig(), informers, scopes)
	if err != nil {
		return nil, err
	}
	return watcher, mgr.Add(watcher)
}

// ownCache returns the options of caches that act as the host operator.
func (o *Options) ownCache(logger logr.Logger) (cache.Options, scopedcache.Options) {
	return cache.Options{
			HTTPClient: o.Cluster.GetHTTPClient(),
			Scheme:     o.Cluster.GetScheme(),
			Mapper:     o.Cluster.GetRESTMapper(),
		}, scopedcache.Options{
			AccessReviewInterval: o.Cache.AccessReviewInterval,
			Logger:               logger,
		}
}
