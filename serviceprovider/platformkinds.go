package serviceprovider

import (
	"context"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/internal/hostcode"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// platformKind is a kind of objects on the platform cluster on which the author's Reconciler may
// depend.
type platformKind struct {
	option, watcher string        // the builder's method, and the interface of the Reconciler
	empty           client.Object // of the kind
	namespace       string        // empty for none
	// isReferenced reports whether a change of the object concerns the API objects. Nil if the
	// Reconciler does not implement the interface.
	isReferenced func(context.Context, client.Object) bool
}

// platformKinds returns the kinds, of which the author may use none.
func (r *APIReconciler[T, C]) platformKinds() []platformKind {
	secrets := platformKind{
		option:    "SecretNamespace",
		watcher:   "SecretWatcher",
		empty:     &corev1.Secret{},
		namespace: r.settings.secretNamespace,
	}
	if watcher, ok := r.settings.reconciler.(SecretWatcher[C]); ok {
		secrets.isReferenced = func(ctx context.Context, object client.Object) bool {
			return r.callWatcher(ctx, "IsReferencedSecret", object, func(config C) bool {
				return watcher.IsReferencedSecret(ctx, object.(*corev1.Secret), config)
			})
		}
	}
	configMaps := platformKind{
		option:    "ConfigMapNamespace",
		watcher:   "ConfigMapWatcher",
		empty:     &corev1.ConfigMap{},
		namespace: r.settings.configMapNamespace,
	}
	if watcher, ok := r.settings.reconciler.(ConfigMapWatcher[C]); ok {
		configMaps.isReferenced = func(ctx context.Context, object client.Object) bool {
			return r.callWatcher(ctx, "IsReferencedConfigMap", object, func(config C) bool {
				return watcher.IsReferencedConfigMap(ctx, object.(*corev1.ConfigMap), config)
			})
		}
	}
	return []platformKind{secrets, configMaps}
}

// callWatcher calls a function of the author with the config. A panic counts as yes: to reconcile
// once too often does no harm.
func (r *APIReconciler[T, C]) callWatcher(ctx context.Context, function string, object client.Object,
	call func(config C) bool) (referenced bool) {
	logger := func() logr.Logger {
		return ctrl.LoggerFrom(ctx).WithValues("namespace", object.GetNamespace(), "name", object.GetName())
	}
	err := hostcode.Caller{Logger: logger}.Call(function, func() error {
		config, _, _ := r.current.get()
		referenced = call(config)
		return nil
	})
	return referenced || err != nil
}

// source returns a source that requests a reconcile of all API objects when a referenced object
// changes, or nil if the author wants none. The cache of the source, which the manager runs, has
// the objects of the kind in the namespace, and nothing else.
func (k platformKind) source(mgr ctrl.Manager, platform cluster.Cluster, all *enqueueAll) (source.Source, error) {
	if k.isReferenced == nil || k.namespace == "" {
		return nil, nil
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	objects, err := scopedcache.New(platform.GetConfig(), cache.Options{
		HTTPClient:        platform.GetHTTPClient(),
		Mapper:            platform.GetRESTMapper(),
		Scheme:            scheme,
		DefaultNamespaces: map[string]cache.Config{k.namespace: {}},
	})
	if err != nil {
		return nil, err
	}
	if err := mgr.Add(objects); err != nil {
		return nil, err
	}
	return source.Kind(objects, k.empty, all.when(k.isReferenced)), nil
}
