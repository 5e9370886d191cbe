package scopedcache

import (
	"maps"
	"slices"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// kindConfig is the part of controller-runtime's options that applies to a kind.
type kindConfig struct {
	everywhere cache.Config            // for cluster-scoped kinds, and without namespaces
	namespaces map[string]cache.Config // if not empty, the only ones that are cached
}

// configs are the options by kind. Whether a kind is namespaced is looked up later, so that
// creating a cache sends no request to the API server.
type configs struct {
	defaults cache.Options
	byObject map[schema.GroupVersionKind]cache.ByObject
}

func newConfigs(opts cache.Options) (configs, error) {
	result := configs{defaults: opts, byObject: map[schema.GroupVersionKind]cache.ByObject{}}
	for object, settings := range opts.ByObject {
		gvk, err := apiutil.GVKForObject(object, opts.Scheme)
		if err != nil {
			return result, errors.Wrapf(err, "ByObject[%T]", object)
		}
		result.byObject[gvk] = settings
		if err := rejectInvalid(settings.Label, settings.Field, settings.Namespaces); err != nil {
			return result, errors.WithMessagef(err, "ByObject[%T]", object)
		}
	}
	return result, rejectInvalid(opts.DefaultLabelSelector, opts.DefaultFieldSelector, opts.DefaultNamespaces)
}

// rejectInvalid returns an error for namespaces that cannot exist, and for selectors that select
// nothing: an API server would return all objects for them.
func rejectInvalid(label labels.Selector, field fields.Selector, namespaces map[string]cache.Config) error {
	if noLabels(label) || noFields(field) {
		return errors.New("a selector of the cache's options selects nothing: an API server would return all objects")
	}
	for namespace, config := range namespaces {
		if namespace != metav1.NamespaceAll && !isPathSegment(namespace) {
			return errors.Errorf("the cache's options name a namespace that cannot exist: %q", namespace)
		}
		if noLabels(config.LabelSelector) || noFields(config.FieldSelector) {
			return errors.Errorf(
				"a selector of the cache's options for namespace %q selects nothing: an API server would return all "+
					"objects", namespace)
		}
	}
	return nil
}

// forKind returns the options that apply to a kind. For each namespace, the first of these that is
// set applies: the namespace's options for the kind, the kind's options, the namespace's defaults,
// the cache's defaults.
func (c configs) forKind(gvk schema.GroupVersionKind) kindConfig {
	defaults := cache.Config{
		LabelSelector:         c.defaults.DefaultLabelSelector,
		FieldSelector:         c.defaults.DefaultFieldSelector,
		Transform:             c.defaults.DefaultTransform,
		UnsafeDisableDeepCopy: c.defaults.DefaultUnsafeDisableDeepCopy,
		EnableWatchBookmarks:  c.defaults.DefaultEnableWatchBookmarks,
		SyncPeriod:            c.defaults.SyncPeriod,
	}
	options := c.byObject[gvk] // the zero value sets nothing
	kind := cache.Config{
		LabelSelector:         options.Label,
		FieldSelector:         options.Field,
		Transform:             options.Transform,
		UnsafeDisableDeepCopy: options.UnsafeDisableDeepCopy,
		EnableWatchBookmarks:  options.EnableWatchBookmarks,
		SyncPeriod:            options.SyncPeriod,
	}
	namespaces := options.Namespaces
	if namespaces == nil {
		namespaces = c.defaults.DefaultNamespaces
	}
	result := kindConfig{everywhere: orElse(kind, defaults), namespaces: map[string]cache.Config{}}
	others := fields.Everything()
	for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
		result.namespaces[namespace] = orElse(orElse(orElse(namespaces[namespace], kind),
			c.defaults.DefaultNamespaces[namespace]), defaults)
		if namespace != metav1.NamespaceAll {
			others = andFields(others, fields.OneTermNotEqualSelector(namespaceField, namespace))
		}
	}
	if all, ok := result.namespaces[metav1.NamespaceAll]; ok {
		// The other namespaces have informers of their own.
		all.FieldSelector = andFields(others, all.FieldSelector)
		result.namespaces[metav1.NamespaceAll] = all
	}
	return result
}

// orElse returns config, with unset fields taken from other.
func orElse(config, other cache.Config) cache.Config {
	if config.LabelSelector == nil {
		config.LabelSelector = other.LabelSelector
	}
	if config.FieldSelector == nil {
		config.FieldSelector = other.FieldSelector
	}
	if config.Transform == nil {
		config.Transform = other.Transform
	}
	if config.UnsafeDisableDeepCopy == nil {
		config.UnsafeDisableDeepCopy = other.UnsafeDisableDeepCopy
	}
	if config.EnableWatchBookmarks == nil {
		config.EnableWatchBookmarks = other.EnableWatchBookmarks
	}
	if config.SyncPeriod == nil {
		config.SyncPeriod = other.SyncPeriod
	}
	return config
}
