package serviceprovider

import (
	"context"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// ConfigReconciler reads the provider's config on the platform cluster and sends it to the
// APIReconciler on every change. An event without an Object means that there is no config. The
// config has the name of the provider. NewConfigReconcilerBuilder builds a ConfigReconciler.
type ConfigReconciler[T Config] struct {
	empty    func() T
	platform cluster.Cluster
	name     string
	updates  chan event.GenericEvent
	options  controller.Options
	latest   latestEvent
}

// Reconcile reads the config, and hands it to the goroutine that sends it. Reconcile never waits
// for the receiver. A failed read is an error, and never counts as missing. Requests for other
// names are ignored.
func (r *ConfigReconciler[T]) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if request.Name != r.name {
		return reconcile.Result{}, nil
	}
	config := r.empty()
	err := r.platform.GetAPIReader().Get(ctx, request.NamespacedName, config)
	switch {
	case apierrors.IsNotFound(err):
		r.latest.set(event.GenericEvent{})
	case err != nil:
		return reconcile.Result{}, errors.Wrap(err, "reading the config")
	default:
		r.latest.set(event.GenericEvent{Object: config})
	}
	return reconcile.Result{}, nil
}

// SetupWithManager adds the controller "<provider's name>-config" to the manager, which must also
// run the platform cluster. SetupWithManager asks the platform cluster for the kind of the config.
func (r *ConfigReconciler[T]) SetupWithManager(mgr ctrl.Manager) error {
	config := r.empty()
	namespaced, err := r.platform.GetClient().IsObjectNamespaced(config)
	if err != nil {
		return errors.Wrap(err, "the kind of the config on the platform cluster")
	}
	if namespaced {
		return errors.Errorf("the config %T must be of a cluster-scoped kind", config)
	}
	options := r.options
	options.Reconciler = r
	c, err := controller.New(r.name+"-config", mgr, options)
	if err != nil {
		return errors.Wrap(err, "adding the controller of the config")
	}
	named := predicate.NewPredicateFuncs(func(object client.Object) bool { return object.GetName() == r.name })
	if err := c.Watch(source.Kind(r.platform.GetCache(), client.Object(config), &handler.EnqueueRequestForObject{}, named,
		predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{},
			predicate.AnnotationChangedPredicate{}))); err != nil {
		return errors.Wrap(err, "watching the config")
	}
	// A config that does not exist has no event, and its absence is to be sent, too.
	if err := c.Watch(source.Func(func(_ context.Context,
		queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(reconcile.Request{NamespacedName: client.ObjectKey{Name: r.name}})
		return nil
	})); err != nil {
		return errors.Wrap(err, "watching the config")
	}
	return errors.Wrap(mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return r.latest.deliver(ctx, r.updates)
	})), "adding the sender of the config")
}

// ConfigReconcilerBuilder builds a ConfigReconciler. Everything but ControllerOptions is required.
type ConfigReconcilerBuilder[T Config] struct {
	reconciler ConfigReconciler[T]
}

// NewConfigReconcilerBuilder returns a builder.
func NewConfigReconcilerBuilder[T Config]() *ConfigReconcilerBuilder[T] {
	return &ConfigReconcilerBuilder[T]{}
}

// EmptyObjectProvider sets the function that returns a new, empty config.
func (b *ConfigReconcilerBuilder[T]) EmptyObjectProvider(empty func() T) *ConfigReconcilerBuilder[T] {
	b.reconciler.empty = empty
	return b
}

// PlatformCluster sets the cluster that has the config. The scheme of the cluster needs its kind.
func (b *ConfigReconcilerBuilder[T]) PlatformCluster(platform cluster.Cluster) *ConfigReconcilerBuilder[T] {
	b.reconciler.platform = platform
	return b
}

// ProviderName sets the name of the provider, which is the name of its config.
func (b *ConfigReconcilerBuilder[T]) ProviderName(name string) *ConfigReconcilerBuilder[T] {
	b.reconciler.name = name
	return b
}

// UpdateChannel sets the channel that the APIReconciler receives from.
func (b *ConfigReconcilerBuilder[T]) UpdateChannel(updates chan event.GenericEvent) *ConfigReconcilerBuilder[T] {
	b.reconciler.updates = updates
	return b
}

// ControllerOptions sets options of the controller. The Reconciler in them is overwritten.
func (b *ConfigReconcilerBuilder[T]) ControllerOptions(options controller.Options) *ConfigReconcilerBuilder[T] {
	b.reconciler.options = options
	return b
}

// Build returns the ConfigReconciler, or an error that names everything that is missing.
func (b *ConfigReconcilerBuilder[T]) Build() (*ConfigReconciler[T], error) {
	r := &b.reconciler
	if err := missing(map[string]bool{
		"EmptyObjectProvider": r.empty == nil, "PlatformCluster": r.platform == nil, "ProviderName": r.name == "",
		"UpdateChannel": r.updates == nil,
	}); err != nil {
		return nil, errors.WithMessage(err, "the config reconciler")
	}
	return &ConfigReconciler[T]{
		empty:    r.empty,
		platform: r.platform,
		name:     r.name,
		updates:  r.updates,
		options:  r.options,
	}, nil
}

// MustBuild is Build that panics instead of returning an error.
func (b *ConfigReconcilerBuilder[T]) MustBuild() *ConfigReconciler[T] {
	r, err := b.Build()
	if err != nil {
		panic(err)
	}
	return r
}
