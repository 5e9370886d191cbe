package clustercache

import (
	"context"
	"reflect"

	"github.com/pkg/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/extensionsource"
	"github.com/latchkey-dev/latchkey/internal/informed"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// SetupWithManager adds a reconciler to the manager and returns the ClusterCache that the
// reconciler serves. The reconciler runs on the leader only. On other replicas, and before the
// manager starts, no extension is connected. All connections end when the manager ends.
//
// ctx is used only during the call. A manager takes one ClusterCache. A process takes one too,
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
	kind, err := options.kind(ctrl.LoggerInto(ctx, mgr.GetLogger().WithName(controllerName)))
	if err != nil {
		return nil, err
	}
	resolver, err := options.Credentials.Bind(options.Cluster, kind)
	if err != nil {
		return nil, errors.WithMessage(err, "Options.Credentials")
	}
	allow, err := options.checkGuard(resolver, kind)
	if err != nil {
		return nil, err
	}

	r := &reconciler{
		object:   options.Object,
		objects:  informed.NewReader(options.Cluster.GetCache()),
		scheme:   options.Cluster.GetScheme(),
		resolver: resolver,
		allow:    allow,
		labelled: options.hasWatchLabel,
		matches:  options.matches,
		kind:     kind.GroupKind(),
	}
	rbacWatcher, err := options.rbacWatcher(mgr)
	if err != nil {
		return nil, errors.WithMessage(err, "Options.Cache.WatchRBAC")
	}
	hub := &extensionsource.Hub{}
	r.set = accessor.NewSet(accessor.Options{
		Scheme: options.Scheme, Cache: options.Cache.connections(), Client: options.Client.connections(),
		HealthProbe: connstate.ProbeOptions(options.HealthProbe), ConnectBackoff: options.ConnectBackoff,
		PerExtension: options.Metrics.PerExtension, RBACWatcher: rbacWatcher,
		Logger: mgr.GetLogger().WithName(controllerName),
		Wake:   r.wake, Changed: hub.Changed,
	})
	cc := &clusterCache{set: r.set, sources: hub, scheme: r.scheme, gvk: kind.GroupVersionKind,
		goType: reflect.TypeOf(options.Object), referenceOf: resolver.Reference}
	if options.EventRecorder != nil {
		r.runAlongside = func(ctx context.Context) { cc.recordEvents(ctx, options.EventRecorder) }
	}
	if err := r.addTo(mgr, options.Cluster, controllerOptions); err != nil {
		return nil, errors.WithMessage(err, "adding the clustercache reconciler to the manager")
	}
	return cc, nil
}

// rbacEvents returns a watcher of RBAC in the cluster of the extensions, or nil without WatchRBAC.
// The watcher acts as the host operator and runs as long as the manager.
func (o *Options) rbacWatcher(mgr manager.Manager) (*scopedcache.RBACWatcher, error) {
	if !o.Cache.WatchRBAC {
		return nil, nil
	}
	watcher, err := scopedcache.NewRBACWatcher(o.Cluster.GetConfig(),
		cache.Options{HTTPClient: o.Cluster.GetHTTPClient(), Scheme: o.Cluster.GetScheme(),
			Mapper: o.Cluster.GetRESTMapper()},
		scopedcache.Options{AccessReviewInterval: o.Cache.AccessReviewInterval,
			Logger: mgr.GetLogger().WithName(controllerName)})
	if err != nil {
		return nil, err
	}
	return watcher, mgr.Add(watcher)
}
