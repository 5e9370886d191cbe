package connection

import (
	"context"
	"net/http"
	"strings"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// followingClient is a connection's client.Client. It sends each request to the resource that
// discovery names now: a CustomResourceDefinition can be deleted and created again with another
// resource or scope.
type followingClient struct {
	conn   *Connection
	sender *sender
	server *serverClient
	// cached, if not nil, serves reads, except those of the kinds in uncached.
	cached   client.Reader
	uncached map[schema.GroupVersionKind]struct{}
}

// newFollowingClient returns a client that sends its requests as via does. It reads from the cache
// of the options, if they are not nil.
func newFollowingClient(c *Connection, via *http.Client, options *client.CacheOptions) (*followingClient, error) {
	f := &followingClient{
		conn:   c,
		sender: &sender{transport: via.Transport, limiter: c.limiter},
		server: c.options.servers.of(serverKey{c.target, via.Timeout}, c.options.Scheme),
	}
	if options == nil {
		return f, nil
	}
	f.cached = options.Reader
	for _, object := range options.DisableFor {
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
	form      form
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

// clientFor returns a client that knows the resource of a kind as discovery has it now, and the
// context for the request. If discovery fails, and the last client knows one, that is returned.
func (f *followingClient) clientFor(ctx context.Context, t target) (context.Context, client.Client, error) {
	if err := f.conn.Err(); err != nil {
		return nil, nil, err // its discovery would fail, and use up the turn of the target's other members
	}
	for {
		current, err := f.server.latest(t.form)
		if err != nil {
			return nil, nil, err
		}
		known := current.pins.get(t.gvk)
		found, err := f.conn.mapper.Resolve(ctx, t.gvk, known)
		if err == nil && t.contradicts(found.Mapping) {
			found = f.conn.mapper.Doubt(ctx, t.gvk, found)
		}
		switch {
		case err != nil:
			return nil, nil, err
		case current.pins.take(t.gvk, found):
			return f.sender.with(ctx), current, nil
		}
		if err := f.server.renew(t.form, current, t.gvk, found); err != nil {
			return nil, nil, errors.WithMessagef(err, "creating a client because %s has another resource", t.gvk)
		}
	}
}

// forObject is clientFor for a request about one object.
func (f *followingClient) forObject(ctx context.Context, object client.Object,
	namespace string) (context.Context, client.Client, error) {
	gvk, err := f.kindOf(object)
	if err != nil {
		return nil, nil, err
	}
	return f.clientFor(ctx, target{form: formOf(object), gvk: gvk, namespace: namespace})
}

// forConfiguration is clientFor for server-side apply.
func (f *followingClient) forConfiguration(ctx context.Context,
	obj runtime.ApplyConfiguration) (context.Context, client.Client, error) {
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
			return nil, nil, errors.Wrap(err, "parsing the apiVersion of what is applied")
		}
		if kind := ptr.Deref(o.GetKind(), ""); kind != "" && version.Version != "" {
			return f.clientFor(ctx, target{
				form:      formApply,
				gvk:       version.WithKind(kind),
				namespace: ptr.Deref(o.GetNamespace(), ""),
			})
		}
	}
	current, err := f.server.latest(formApply)
	return f.sender.with(ctx), current, err // it says what is wrong
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
	ctx, c, err := f.forObject(ctx, object, key.Namespace)
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
	ctx, c, err := f.clientFor(ctx, target{form: formOf(list), gvk: gvk, namespace: options.Namespace, many: true})
	if err != nil {
		return err
	}
	return c.List(ctx, list, opts...)
}

// Create implements client.Writer.
func (f *followingClient) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	ctx, c, err := f.forObject(ctx, object, object.GetNamespace())
	if err != nil {
		return err
	}
	return c.Create(ctx, object, opts...)
}

// Update implements client.Writer.
func (f *followingClient) Update(ctx context.Context, object client.Object, opts ...client.UpdateOption) error {
	ctx, c, err := f.forObject(ctx, object, object.GetNamespace())
	if err != nil {
		return err
	}
	return c.Update(ctx, object, opts...)
}

// Patch implements client.Writer.
func (f *followingClient) Patch(ctx context.Context, object client.Object, patch client.Patch,
	opts ...client.PatchOption) error {
	ctx, c, err := f.forObject(ctx, object, object.GetNamespace())
	if err != nil {
		return err
	}
	return c.Patch(ctx, object, patch, opts...)
}

// Apply implements client.Writer.
func (f *followingClient) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	ctx, c, err := f.forConfiguration(ctx, obj)
	if err != nil {
		return err
	}
	return c.Apply(ctx, obj, opts...)
}

// Delete implements client.Writer.
func (f *followingClient) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	ctx, c, err := f.forObject(ctx, object, object.GetNamespace())
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
	ctx, c, err := f.clientFor(ctx, target{form: formOf(object), gvk: gvk, namespace: options.Namespace, many: true})
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

func (s *followingSubResource) of(ctx context.Context,
	object client.Object) (context.Context, client.SubResourceClient, error) {
	ctx, c, err := s.client.forObject(ctx, object, object.GetNamespace())
	if err != nil {
		return nil, nil, err
	}
	return ctx, c.SubResource(s.name), nil
}

// Get implements client.SubResourceReader.
func (s *followingSubResource) Get(ctx context.Context, object, subResource client.Object,
	opts ...client.SubResourceGetOption) error {
	ctx, c, err := s.of(ctx, object)
	if err != nil {
		return err
	}
	return c.Get(ctx, object, subResource, opts...)
}

// Create implements client.SubResourceWriter.
func (s *followingSubResource) Create(ctx context.Context, object, subResource client.Object,
	opts ...client.SubResourceCreateOption) error {
	ctx, c, err := s.of(ctx, object)
	if err != nil {
		return err
	}
	return c.Create(ctx, object, subResource, opts...)
}

// Update implements client.SubResourceWriter.
func (s *followingSubResource) Update(ctx context.Context, object client.Object,
	opts ...client.SubResourceUpdateOption) error {
	ctx, c, err := s.of(ctx, object)
	if err != nil {
		return err
	}
	return c.Update(ctx, object, opts...)
}

// Patch implements client.SubResourceWriter.
func (s *followingSubResource) Patch(ctx context.Context, object client.Object, patch client.Patch,
	opts ...client.SubResourcePatchOption) error {
	ctx, c, err := s.of(ctx, object)
	if err != nil {
		return err
	}
	return c.Patch(ctx, object, patch, opts...)
}

// Apply implements client.SubResourceWriter.
func (s *followingSubResource) Apply(ctx context.Context, obj runtime.ApplyConfiguration,
	opts ...client.SubResourceApplyOption) error {
	ctx, c, err := s.client.forConfiguration(ctx, obj)
	if err != nil {
		return err
	}
	return c.SubResource(s.name).Apply(ctx, obj, opts...)
}
