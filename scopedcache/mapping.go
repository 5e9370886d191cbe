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

// discoveryTimeout bounds finding out about a kind.
const discoveryTimeout = 30 * time.Second

// errDiscovery is why finding out about a kind ends.
var errDiscovery = errors.WithMessage(context.DeadlineExceeded, "looking for the kind")

// contextMapper is a RESTMapper that can be told to give up, and that forgets what is not served
// any more.
type contextMapper interface {
	RESTMappingWithContext(ctx context.Context, gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error)
}

// until returns what f returns, or gives it up when ctx is done: f then ends on its own time. f is
// in one flight for all who ask by the same name.
func until[result any](ctx context.Context, flights *singleflight.Group, name string,
	f func() (result, error)) (result, error) {
	var none result
	select {
	case done := <-flights.DoChan(name, func() (any, error) { return f() }):
		if done.Err != nil {
			return none, errors.WithStack(done.Err)
		}
		return done.Val.(result), nil
	case <-ctx.Done():
		return none, errors.WithStack(context.Cause(ctx))
	}
}

// discovery finds the resource of a kind.
type discovery struct {
	config     *rest.Config
	httpClient *http.Client
	mapper     meta.RESTMapper
	finding    singleflight.Group
}

// mapperForgets reports whether the mapper can be asked again about what has gone or has changed.
func (d *discovery) mapperForgets() bool {
	_, ok := d.mapper.(contextMapper)
	return ok
}

// mapping asks the mapper, until ctx is done.
func (d *discovery) mapping(ctx context.Context, gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	if mapper, ok := d.mapper.(contextMapper); ok {
		mapping, err := mapper.RESTMappingWithContext(ctx, gvk.GroupKind(), gvk.Version)
		return mapping, errors.WithStack(err)
	}
	return until(ctx, &d.finding, gvk.String(), func() (*meta.RESTMapping, error) {
		return d.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	})
}

// discover asks the API server, for mappers that never forget cannot be asked about what has gone,
// or has changed.
func (d *discovery) discover(ctx context.Context, gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	bounded := *d.httpClient
	bounded.Timeout = discoveryTimeout
	client, err := clientdiscovery.NewDiscoveryClientForConfigAndClient(d.config, &bounded)
	if err != nil {
		return nil, errors.Wrap(err, "making a discovery client")
	}
	served, err := until(ctx, &d.finding, "discover "+gvk.GroupVersion().String(),
		func() (*metav1.APIResourceList, error) {
			return client.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
		})
	if apierrors.IsNotFound(err) {
		served, err = &metav1.APIResourceList{}, nil
	}
	if err != nil {
		return nil, errors.Wrapf(err, "discovering %s", gvk.GroupVersion())
	}
	for _, resource := range served.APIResources {
		// a subresource, or what can only be created
		if resource.Kind != gvk.Kind || !slices.Contains(resource.Verbs, "list") {
			continue
		}
		scope := meta.RESTScope(meta.RESTScopeRoot)
		if resource.Namespaced {
			scope = meta.RESTScopeNamespace
		}
		return &meta.RESTMapping{Resource: gvk.GroupVersion().WithResource(resource.Name), GroupVersionKind: gvk,
			Scope: scope}, nil
	}
	return nil,
		errors.WithStack(&meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}})
}
