package clustercache

import (
	"context"
	"net/http"
	"strings"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// overridingResolver adds the options for each extension's cache to what another Resolver returns.
type overridingResolver struct {
	identity.Resolver
	scheme       *runtime.Scheme
	metrics      *metrics.Cache
	perExtension func(client.Object) CacheOverrides
}

const inPerExtension = "Options.Cache.PerExtension"

// maxOverridesVersion is how long a version may be.
const maxOverridesVersion = 253

// withOverrides returns the resolver with the options of perExtension, which may be nil.
func withOverrides(resolver identity.Resolver, scheme *runtime.Scheme, counts *metrics.Cache,
	perExtension func(client.Object) CacheOverrides) identity.Resolver {
	if perExtension == nil {
		return resolver
	}
	return &overridingResolver{Resolver: resolver, scheme: scheme, metrics: counts, perExtension: perExtension}
}

// Reference implements identity.Resolver. Only Resolve checks the options, because For calls
// Reference.
func (r *overridingResolver) Reference(object client.Object) (identity.Reference, error) {
	reference, err := r.Resolver.Reference(object)
	if err != nil {
		return reference, err
	}
	overrides, err := r.overrides(context.Background(), object)
	return withVersion(reference, overrides), err
}

// Resolve implements identity.Resolver.
func (r *overridingResolver) Resolve(ctx context.Context, object client.Object) (identity.Resolution, error) {
	overrides, invalid := r.overrides(ctx, object)
	if invalid == nil {
		invalid = invalidOverrides(r.check(overrides))
	}
	resolution, err := r.Resolver.Resolve(ctx, object)
	resolution.Reference = withVersion(resolution.Reference, overrides)
	if invalid != nil {
		r.Forget(client.ObjectKeyFromObject(object))
		return identity.Resolution{
			Source:         resolution.Source,
			ServiceAccount: resolution.ServiceAccount,
			Reference:      resolution.Reference,
		}, invalid
	}
	if err == nil && len(overrides.ByObject) > 0 {
		resolution.Key += "\ncache options " + overrides.Version
		resolution.ByObject = overrides.ByObject
	}
	return resolution, err
}

// overrides returns what perExtension returns, or ErrInvalidReference if it panics.
func (r *overridingResolver) overrides(ctx context.Context, object client.Object) (overrides CacheOverrides,
	err error) {
	err = call(ctx, r.metrics, inPerExtension, object, func() error {
		overrides = r.perExtension(object)
		return nil
	})
	return overrides, invalidOverrides(err)
}

func invalidOverrides(err error) error {
	if err == nil {
		return nil
	}
	return errors.Wrapf(credential.ErrInvalidReference, "%s: %v", inPerExtension, err)
}

func withVersion(reference identity.Reference, overrides CacheOverrides) identity.Reference {
	if len(overrides.ByObject) > 0 {
		version := overrides.Version[:min(len(overrides.Version), maxOverridesVersion)]
		reference.Name = strings.TrimSpace(reference.Name + " with cache options " + version)
	}
	return reference
}

func (r *overridingResolver) check(overrides CacheOverrides) error {
	switch {
	case len(overrides.ByObject) == 0:
		return nil
	case overrides.Version == "":
		return errors.New("a Version is missing")
	case len(overrides.Version) > maxOverridesVersion || !untrusted.IsPresentable(overrides.Version):
		return errors.Errorf("the Version must be one line of at most %d printable bytes", maxOverridesVersion)
	}
	if err := rejectAllNamespaces("ByObject", overrides.ByObject); err != nil {
		return err
	}
	if err := rejectDuplicates("ByObject", overrides.ByObject, r.scheme); err != nil {
		return err
	}
	_, err := trialCache(overrides.ByObject, r.scheme)
	return err
}

// rejectAllNamespaces returns an error for options of some namespaces and all others: a watch would
// have one informer of the others.
func rejectAllNamespaces(what string, byObject map[client.Object]cache.ByObject) error {
	for object, settings := range byObject {
		if _, all := settings.Namespaces[metav1.NamespaceAll]; all {
			return errors.Errorf("%s[%T]: Namespaces must not have the empty name; leave Namespaces out for all namespaces",
				what, object)
		}
	}
	return nil
}

// rejectDuplicates returns an error for two options of one kind, of which one would be lost.
func rejectDuplicates(what string, byObject map[client.Object]cache.ByObject, scheme *runtime.Scheme) error {
	known := map[schema.GroupVersionKind]bool{}
	for object := range byObject {
		gvk, err := apiutil.GVKForObject(object, scheme)
		if err != nil {
			return errors.Wrapf(err, "%s[%T]", what, object)
		}
		if known[gvk] {
			return errors.Errorf("%s has two objects of %s: options are for a kind, whatever its representation", what, gvk)
		}
		known[gvk] = true
	}
	return nil
}

// trialCache returns a cache that never starts, or an error for options that no cache can have. It
// sends no request.
func trialCache(byObject map[client.Object]cache.ByObject, scheme *runtime.Scheme) (cache.Cache, error) {
	return scopedcache.New(&rest.Config{}, cache.Options{
		HTTPClient: http.DefaultClient,
		Scheme:     scheme,
		Mapper:     meta.NewDefaultRESTMapper(nil),
		ByObject:   byObject,
	})
}
