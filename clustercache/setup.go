package clustercache

import (
	"context"

	"github.com/pkg/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/internal/extensionsource"
	"github.com/latchkey-dev/latchkey/internal/informed"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// SetupWithManager adds a reconciler to the manager and returns the ClusterCache that it serves.
// The reconciler runs on the replica that leads; elsewhere, and before the manager starts, nothing
// is connected. ctx is used while setting up only; the manager's end ends everything. A manager
// takes one ClusterCache. So does a process, as controller-runtime wants names of controllers to be
// unique, unless controllerOptions say SkipNameValidation. Of controllerOptions nothing else needs
// to be set: the reconciler never dials, so one worker suffices. Its Reconciler is ours.
//
// It asks the API server about the kind of the extensions, and fails on options that cannot work
// with it, where the kind is not served, and where the API server does not answer.
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
	allow, err := options.guard(resolver, kind)
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
		wants:    options.wants,
		kind:     kind.GroupKind(),
	}
	rbacEvents, err := options.rbacEvents(mgr)
	if err != nil {
		return nil, errors.WithMessage(err, "Options.Cache.WatchRBAC")
	}
	hub := &extensionsource.Hub{}
	r.set = accessor.NewSet(accessor.Options{
		Scheme: options.Scheme, Cache: options.Cache, Client: options.Client, HealthProbe: options.HealthProbe,
		ConnectBackoff: options.ConnectBackoff,
		Metrics:        options.Metrics, RBACWatcher: rbacEvents,
		Logger: mgr.GetLogger().WithName(controllerName),
		Wake:   r.wake, Changed: hub.Changed,
	})
	cc := &clusterCache{set: r.set, sources: hub}
	if options.EventRecorder != nil {
		r.beside = func(ctx context.Context) { cc.recordEvents(ctx, options.EventRecorder) }
	}
	if err := r.addTo(mgr, options.Cluster, controllerOptions); err != nil {
		return nil, errors.WithMessage(err, "adding the clustercache reconciler to the manager")
	}
	return cc, nil
}

// rbacEvents watches RBAC in the cluster of the extensions, as the host operator and as long as the
// manager runs.
func (o *Options) rbacEvents(mgr manager.Manager) (*scopedcache.RBACWatcher, error) {
	if !o.Cache.WatchRBAC {
		return nil, nil
	}
	watched, err := scopedcache.NewRBACWatcher(o.Cluster.GetConfig(),
		cache.Options{HTTPClient: o.Cluster.GetHTTPClient(), Scheme: o.Cluster.GetScheme(),
			Mapper: o.Cluster.GetRESTMapper()},
		scopedcache.Options{AccessReviewInterval: o.Cache.AccessReviewInterval,
			Logger: mgr.GetLogger().WithName(controllerName)})
	if err != nil {
		return nil, err
	}
	return watched, mgr.Add(watched)
}
