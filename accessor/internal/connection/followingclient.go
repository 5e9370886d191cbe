package connection

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
)

// followingClient is a client.Client that sends each request to the resource that discovery names
// now. A client of controller-runtime remembers the resource and scope of a kind for good.
// followingClient makes another one when a kind has another resource or scope: a
// CustomResourceDefinition can be deleted and created again with another one. The first one is made
// when it is needed: an extension that only reads from the cache needs none.
type followingClient struct {
	conn    *Connection
	options client.Options // without Mapper
	// cached, if not nil, serves reads, except those of the kinds in uncached.
	cached   client.Reader
	uncached map[schema.GroupVersionKind]struct{}

	current  atomic.Pointer[pinnedClient] // nil before the first request that needs it
	building sync.Mutex
}

// newFollowingClient returns a client with those options, whose Mapper must not be set.
func newFollowingClient(c *Connection, options client.Options) (*followingClient, error) {
	f := &followingClient{conn: c, options: options}
	if options.Cache == nil {
		return f, nil
	}
	f.cached = options.Cache.Reader
	for _, object := range options.Cache.DisableFor {
		gvk, err := f.kindOf(object)
		if err != nil {
			return nil, err
		}
		if f.uncached == nil {
			f.uncached = map[schema.GroupVersionKind]struct{}{}
		}
		f.uncached[gvk] = struct{}{}
	}
	return f, nil
}

func (f *followingClient) newClient(pins *pins) (*pinnedClient, error) {
	options := f.options
	options.Mapper = pins
	built, err := client.New(f.conn.config, options)
	return &pinnedClient{built, pins}, errors.Wrap(err, "creating a client")
}

// latest returns the client that knows the latest resources.
func (f *followingClient) latest() (*pinnedClient, error) {
	if current := f.current.Load(); current != nil {
		return current, nil
	}
	f.building.Lock()
	defer f.building.Unlock()
	if current := f.current.Load(); current != nil {
		return current, nil
	}
	first, err := f.newClient(&pins{RESTMapper: f.conn.mapper})
	if err != nil {
		return nil, err
	}
	f.current.Store(first)
	return first, nil
}

// renew replaces the client by one for which a kind has another resource, unless another caller has
// done so. The new client knows the other kinds as the last one did.
func (f *followingClient) renew(last *pinnedClient, gvk schema.GroupVersionKind, found *targets.Resolved) error {
	f.building.Lock()
	defer f.building.Unlock()
	if f.current.Load() != last {
		return nil
	}
	pins := &pins{RESTMapper: f.conn.mapper}
	last.pins.known.Range(func(gvk, known any) bool {
		pins.known.Store(gvk, known)
		return true
	})
	pins.known.Store(gvk, found)
	next, err := f.newClient(pins)
	if err != nil {
		return err
	}
	f.current.Store(next)
	return nil
}

// kindOf returns the kind of an object, or of a list's items.
func (f *followingClient) kindOf(object runtime.Object) (schema.GroupVersionKind, error) {
	gvk, err := apiutil.GVKForObject(object, f.Scheme())
	if err == nil && meta.IsListType(object) {
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	}
	return gvk, err
}

// target is what a request is for.
type target struct {
	gvk       schema.GroupVersionKind
	namespace string
	many      bool // the request may be for all namespaces
}

// contradicts reports whether a request makes no sense for that resource: its scope may have
// changed.
func (t *target) contradicts(mapping *meta.RESTMapping) bool {
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return t.namespace != ""
	}
	return t.namespace == "" && !t.many
}

// clientFor returns a client that knows the resource of a kind as discovery has it now. If
// discovery fails, and the last client knows one, that is returned.
func (f *followingClient) clientFor(ctx context.Context, t target) (client.Client, error) {
	for {
		current, err := f.latest()
		if err != nil {
			return nil, err
		}
		known := current.pins.get(t.gvk)
		found, err := f.conn.mapper.Resolve(ctx, t.gvk, known)
		if err == nil && t.contradicts(found.Mapping) {
			found = f.conn.mapper.Doubt(ctx, t.gvk, found)
		}
		switch {
		case err != nil:
			return nil, err
		case current.pins.take(t.gvk, found):
			return current, nil
		}
		if err := f.renew(current, t.gvk, found); err != nil {
			return nil, errors.WithMessagef(err, "creating a client because %s has another resource", t.gvk)
		}
	}
}

// forObject is clientFor for a request about one object.
func (f *followingClient) forObject(ctx context.Context, object client.Object,
	namespace string) (client.Client, error) {
	gvk, err := f.kindOf(object)
	if err != nil {
		return nil, err
	}
	return f.clientFor(ctx, target{gvk: gvk, namespace: namespace})
}

// forConfiguration is clientFor for server-side apply.
func (f *followingClient) forConfiguration(ctx context.Context, obj runtime.ApplyConfiguration) (client.Client, error) {
	switch o := obj.(type) {
	case client.Object: // an unstructured one
		return f.forObject(ctx, o, o.GetNamespace())
	case interface {
		GetNamespace() *string
		GetKind() *string
		GetAPIVersion() *string
	}:
		version, err := schema.ParseGroupVersion(ptr.Deref(o.GetAPIVersion(), ""))
		if err != nil {
			return nil, errors.Wrap(err, "parsing the apiVersion of what is applied")
		}
		if kind := ptr.Deref(o.GetKind(), ""); kind != "" && version.Version != "" {
			return f.clientFor(ctx, target{gvk: version.WithKind(kind), namespace: ptr.Deref(o.GetNamespace(), "")})
		}
	}
	return f.latest() // it says what is wrong
}

// caches reports whether reads of an object or list come from the cache.
func (f *followingClient) caches(object runtime.Object) bool {
	if f.cached == nil || len(f.uncached) == 0 {
		return f.cached != nil
	}
	gvk, err := f.kindOf(object)
	_, uncached := f.uncached[gvk]
	return err != nil || !uncached
}

// Get implements client.Reader.
func (f *followingClient) Get(ctx context.Context, key client.ObjectKey, object client.Object,
	opts ...client.GetOption) error {
	if f.caches(object) {
		return f.cached.Get(ctx, key, object, opts...)
	}
	c, err := f.forObject(ctx, object, key.Namespace)
	if err != nil {
		return err
	}
	return c.Get(ctx, key, object, opts...)
}

// List implements client.Reader.
func (f *followingClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if f.caches(list) {
		return f.cached.List(ctx, list, opts...)
	}
	gvk, err := f.kindOf(list)
	if err != nil {
		return err
	}
	var options client.ListOptions
	options.ApplyOptions(opts)
	c, err := f.clientFor(ctx, target{gvk: gvk, namespace: options.Namespace, many: true})
	if err != nil {
		return err
	}
	return c.List(ctx, list, opts...)
}

// Create implements client.Writer.
func (f *followingClient) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	c, err := f.forObject(ctx, object, object.GetNamespace())
	if err != nil {
		return err
	}
	return c.Create(ctx, object, opts...)
}

// Update implements client.Writer.
func (f *followingClient) Update(ctx context.Context, object client.Object, opts ...client.UpdateOption) error {
	c, err := f.forObject(ctx, object, object.GetNamespace())
	if err != nil {
		return err
	}
	return c.Update(ctx, object, opts...)
}

// Patch implements client.Writer.
func (f *followingClient) Patch(ctx context.Context, object client.Object, patch client.Patch,
	opts ...client.PatchOption) error {
	c, err := f.forObject(ctx, object, object.GetNamespace())
	if err != nil {
		return err
	}
	return c.Patch(ctx, object, patch, opts...)
}

// Apply implements client.Writer.
func (f *followingClient) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	c, err := f.forConfiguration(ctx, obj)
	if err != nil {
		return err
	}
	return c.Apply(ctx, obj, opts...)
}

// Delete implements client.Writer.
func (f *followingClient) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	c, err := f.forObject(ctx, object, object.GetNamespace())
	if err != nil {
		return err
	}
	return c.Delete(ctx, object, opts...)
}

// DeleteAllOf implements client.Writer.
func (f *followingClient) DeleteAllOf(ctx context.Context, object client.Object,
	opts ...client.DeleteAllOfOption) error {
	gvk, err := f.kindOf(object)
	if err != nil {
		return err
	}
	var options client.DeleteAllOfOptions
	options.ApplyOptions(opts)
	c, err := f.clientFor(ctx, target{gvk: gvk, namespace: options.Namespace, many: true})
	if err != nil {
		return err
	}
	return c.DeleteAllOf(ctx, object, opts...)
}

// Status implements client.StatusClient.
func (f *followingClient) Status() client.SubResourceWriter { return f.SubResource("status") }

// SubResource implements client.SubResourceClientConstructor.
func (f *followingClient) SubResource(name string) client.SubResourceClient {
	return &followingSubResource{f, name}
}

// Scheme implements client.Client.
func (f *followingClient) Scheme() *runtime.Scheme { return f.conn.options.Scheme }

// RESTMapper implements client.Client.
func (f *followingClient) RESTMapper() meta.RESTMapper { return f.conn.mapper }

// GroupVersionKindFor implements client.Client.
func (f *followingClient) GroupVersionKindFor(object runtime.Object) (schema.GroupVersionKind, error) {
	return apiutil.GVKForObject(object, f.Scheme())
}

// IsObjectNamespaced implements client.Client.
func (f *followingClient) IsObjectNamespaced(object runtime.Object) (bool, error) {
	return apiutil.IsObjectNamespaced(object, f.Scheme(), f.conn.mapper)
}

// followingSubResource is the client of a subresource.
type followingSubResource struct {
	client *followingClient
	name   string
}

func (s *followingSubResource) of(ctx context.Context, object client.Object) (client.SubResourceClient, error) {
	c, err := s.client.forObject(ctx, object, object.GetNamespace())
	if err != nil {
		return nil, err
	}
	return c.SubResource(s.name), nil
}

// Get implements client.SubResourceReader.
func (s *followingSubResource) Get(ctx context.Context, object, subResource client.Object,
	opts ...client.SubResourceGetOption) error {
	c, err := s.of(ctx, object)
	if err != nil {
		return err
	}
	return c.Get(ctx, object, subResource, opts...)
}

// Create implements client.SubResourceWriter.
func (s *followingSubResource) Create(ctx context.Context, object, subResource client.Object,
	opts ...client.SubResourceCreateOption) error {
	c, err := s.of(ctx, object)
	if err != nil {
		return err
	}
	return c.Create(ctx, object, subResource, opts...)
}

// Update implements client.SubResourceWriter.
func (s *followingSubResource) Update(ctx context.Context, object client.Object,
	opts ...client.SubResourceUpdateOption) error {
	c, err := s.of(ctx, object)
	if err != nil {
		return err
	}
	return c.Update(ctx, object, opts...)
}

// Patch implements client.SubResourceWriter.
func (s *followingSubResource) Patch(ctx context.Context, object client.Object, patch client.Patch,
	opts ...client.SubResourcePatchOption) error {
	c, err := s.of(ctx, object)
	if err != nil {
		return err
	}
	return c.Patch(ctx, object, patch, opts...)
}

// Apply implements client.SubResourceWriter.
func (s *followingSubResource) Apply(ctx context.Context, obj runtime.ApplyConfiguration,
	opts ...client.SubResourceApplyOption) error {
	c, err := s.client.forConfiguration(ctx, obj)
	if err != nil {
		return err
	}
	return c.SubResource(s.name).Apply(ctx, obj, opts...)
}
