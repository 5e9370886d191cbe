package scopedcache

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientdiscovery "k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// discoveryTimeout bounds the discovery of a kind.
const discoveryTimeout = 30 * time.Second

// errDiscovery is the cause when the discovery of a kind times out.
var errDiscovery = errors.WithMessage(context.DeadlineExceeded, "discovering the kind")

// contextMapper is a RESTMapper that accepts a context.
type contextMapper interface {
	RESTMappingWithContext(ctx context.Context, gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error)
}

// exactMapper is a RESTMapper that forgets kinds that are not served any more, and that can ask the
// API server, whatever it knows. RESTMappers of client-go do neither.
type exactMapper interface {
	RESTMappingAnew(ctx context.Context, gk schema.GroupKind, version string) (*meta.RESTMapping, error)
}

// shareFlight returns the result of f. All concurrent callers with the same name share one call of
// f. When ctx is done, shareFlight returns the cause of ctx, and f continues until it returns by
// itself.
func shareFlight[result any](ctx context.Context, flights *singleflight.Group, name string,
	f func() (result, error)) (result, error) {
	var none result
	select {
	case answer := <-flights.DoChan(name, func() (any, error) { return f() }):
		if answer.Err != nil {
			return none, errors.WithStack(answer.Err)
		}
		return answer.Val.(result), nil
	case <-ctx.Done():
		return none, errors.WithStack(context.Cause(ctx))
	}
}

// discovery finds the resource of a kind.
type discovery struct {
	config     *rest.Config
	httpClient *http.Client
	mapper     meta.RESTMapper
	hideText   bool // errors do not contain the API server's text
	flights    singleflight.Group
}

// mapperForgets reports whether the mapper notices that a kind was removed or has changed.
func (d *discovery) mapperForgets() bool {
	_, ok := d.mapper.(exactMapper)
	return ok
}

// mappingAnew asks for the resource of a kind, and trusts nothing that was known before.
func (d *discovery) mappingAnew(ctx context.Context, gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	if mapper, ok := d.mapper.(exactMapper); ok {
		mapping, err := mapper.RESTMappingAnew(ctx, gvk.GroupKind(), gvk.Version)
		return mapping, displayError(errors.WithStack(err), d.hideText)
	}
	return d.discover(ctx, gvk)
}

// mapping asks the mapper, until ctx is done.
func (d *discovery) mapping(ctx context.Context, gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	if mapper, ok := d.mapper.(contextMapper); ok {
		mapping, err := mapper.RESTMappingWithContext(ctx, gvk.GroupKind(), gvk.Version)
		return mapping, displayError(errors.WithStack(err), d.hideText)
	}
	mapping, err := shareFlight(ctx, &d.flights, gvk.String(), func() (*meta.RESTMapping, error) {
		return d.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	})
	return mapping, displayError(err, d.hideText)
}

// discover asks the API server directly, because a mapper that never forgets does not notice that a
// kind was removed or has changed.
func (d *discovery) discover(ctx context.Context, gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	bounded := *d.httpClient
	bounded.Timeout = discoveryTimeout
	client, err := clientdiscovery.NewDiscoveryClientForConfigAndClient(d.config, &bounded)
	if err != nil {
		return nil, errors.Wrap(err, "creating a discovery client")
	}
	list, err := shareFlight(ctx, &d.flights, "discover "+gvk.GroupVersion().String(),
		func() (*metav1.APIResourceList, error) {
			return client.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
		})
	if apierrors.IsNotFound(err) {
		list, err = &metav1.APIResourceList{}, nil
	}
	if err != nil {
		return nil, displayError(errors.Wrapf(err, "discovering %s", gvk.GroupVersion()), d.hideText)
	}
	for _, resource := range list.APIResources {
		// skips subresources, and kinds that can only be created
		if resource.Kind != gvk.Kind || !slices.Contains(resource.Verbs, "list") {
			continue
		}
		scope := meta.RESTScope(meta.RESTScopeRoot)
		if resource.Namespaced {
			scope = meta.RESTScopeNamespace
		}
		return &meta.RESTMapping{
			Resource:         gvk.GroupVersion().WithResource(resource.Name),
			GroupVersionKind: gvk,
			Scope:            scope,
		}, nil
	}
	return nil,
		errors.WithStack(&meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}})
}
