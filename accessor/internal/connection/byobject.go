package connection

import (
	"cmp"
	"maps"
	"slices"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// byObject returns the options by kind of every connection, with those of one connection in their
// place. What is not set in these is taken from the others.
func byObject(every, one map[client.Object]cache.ByObject,
	scheme *runtime.Scheme) (map[client.Object]cache.ByObject, error) {
	if len(one) == 0 {
		return every, nil
	}
	merged := maps.Clone(one)
	kinds := map[schema.GroupVersionKind]client.Object{}
	for object := range one {
		gvk, err := apiutil.GVKForObject(object, scheme)
		if err != nil {
			return nil, errors.Wrapf(err, "ByObject[%T]", object)
		}
		kinds[gvk] = object
	}
	for object, settings := range every {
		gvk, err := apiutil.GVKForObject(object, scheme)
		if err != nil {
			return nil, errors.Wrapf(err, "ByObject[%T]", object)
		}
		if own, ok := kinds[gvk]; ok {
			merged[own] = orElse(merged[own], settings)
		} else {
			merged[object] = settings
		}
	}
	return merged, nil
}

// orElse returns settings, with unset fields taken from other. What settings has comes before what
// other has for a namespace.
func orElse(settings, other cache.ByObject) cache.ByObject {
	if settings.Namespaces == nil {
		settings.Namespaces = maps.Clone(other.Namespaces)
		for name, config := range settings.Namespaces {
			settings.Namespaces[name] = overridden(config, settings)
		}
	}
	settings.Label = cmp.Or(settings.Label, other.Label)
	settings.Field = cmp.Or(settings.Field, other.Field)
	if settings.Transform == nil {
		settings.Transform = other.Transform
	}
	settings.UnsafeDisableDeepCopy = cmp.Or(settings.UnsafeDisableDeepCopy, other.UnsafeDisableDeepCopy)
	settings.EnableWatchBookmarks = cmp.Or(settings.EnableWatchBookmarks, other.EnableWatchBookmarks)
	settings.SyncPeriod = cmp.Or(settings.SyncPeriod, other.SyncPeriod)
	return settings
}

// overridden returns the options for a namespace, with what is set in those for its kind.
func overridden(config cache.Config, settings cache.ByObject) cache.Config {
	config.LabelSelector = cmp.Or(settings.Label, config.LabelSelector)
	config.FieldSelector = cmp.Or(settings.Field, config.FieldSelector)
	if settings.Transform != nil {
		config.Transform = settings.Transform
	}
	config.UnsafeDisableDeepCopy = cmp.Or(settings.UnsafeDisableDeepCopy, config.UnsafeDisableDeepCopy)
	config.EnableWatchBookmarks = cmp.Or(settings.EnableWatchBookmarks, config.EnableWatchBookmarks)
	config.SyncPeriod = cmp.Or(settings.SyncPeriod, config.SyncPeriod)
	return config
}

// namespacesOf returns the namespaces that options name for a kind.
func namespacesOf(options map[client.Object]cache.ByObject,
	scheme *runtime.Scheme) (map[schema.GroupVersionKind]*scopedcache.Namespaces, error) {
	sets := map[schema.GroupVersionKind]*scopedcache.Namespaces{}
	for object, settings := range options {
		if len(settings.Namespaces) == 0 {
			continue
		}
		gvk, err := apiutil.GVKForObject(object, scheme)
		if err != nil {
			return nil, errors.Wrapf(err, "ByObject[%T]", object)
		}
		sets[gvk] = scopedcache.InNamespaces(slices.Collect(maps.Keys(settings.Namespaces))...)
	}
	return sets, nil
}

// isOfAll reports whether a scope is of all namespaces, or of all in which the identity may.
func isOfAll(scope scopedcache.Scope) bool {
	set := scope.Namespaces
	return scope.Namespace == "" && set.Names() == nil && set.LabelSelector() == nil
}
