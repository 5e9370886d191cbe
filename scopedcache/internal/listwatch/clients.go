package listwatch

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Clients lists and watches kinds in each representation, as one identity. A client is made when it
// is first needed. Methods may be called from any goroutine.
type Clients struct {
	config     *rest.Config
	httpClient *http.Client
	scheme     *runtime.Scheme
	codecs     func() *codecs
	dynamic    func() (dynamic.Interface, error)
	metadata   func() (metadata.Interface, error)

	mu    sync.Mutex
	typed map[schema.GroupVersionKind]rest.Interface // guarded by mu
}

// codecs encode and decode the types of a scheme, also those that the scheme learns later.
type codecs struct {
	scheme  *runtime.Scheme
	objects serializer.CodecFactory
	options runtime.ParameterCodec
}

// latestCodecs are those of the scheme that was used last. They take 4 KiB, and nearly all processes
// have one scheme for all of their caches.
var latestCodecs atomic.Pointer[codecs]

func codecsOf(scheme *runtime.Scheme) *codecs {
	if known := latestCodecs.Load(); known != nil && known.scheme == scheme {
		return known
	}
	created := &codecs{scheme, serializer.NewCodecFactory(scheme), runtime.NewParameterCodec(scheme)}
	latestCodecs.Store(created)
	return created
}

// NewClients returns clients that send requests through httpClient.
func NewClients(config *rest.Config, httpClient *http.Client, scheme *runtime.Scheme) *Clients {
	untyped := func() *rest.Config { // these clients bring serializers of their own
		c := rest.CopyConfig(config)
		c.NegotiatedSerializer = nil
		return c
	}
	return &Clients{config: config, httpClient: httpClient, scheme: scheme,
		codecs: sync.OnceValue(func() *codecs { return codecsOf(scheme) }),
		dynamic: sync.OnceValues(func() (dynamic.Interface, error) {
			return dynamic.NewForConfigAndClient(untyped(), httpClient)
		}),
		metadata: sync.OnceValues(func() (metadata.Interface, error) {
			return metadata.NewForConfigAndClient(untyped(), httpClient)
		}),
		typed: map[schema.GroupVersionKind]rest.Interface{},
	}
}

// Resource is what an informer lists and watches.
type Resource struct {
	Mapping   *meta.RESTMapping
	Example   client.Object // of the kind, in the representation to list
	Namespace string        // empty for all, and for cluster-scoped kinds
	// Selectors of all requests.
	Labels, Fields string
	// Bookmarks makes watches ask for bookmarks.
	Bookmarks bool
}

// For returns the lists and watches of a resource. For sends no request.
func (c *Clients) For(r Resource) (toolscache.ListerWatcherWithContext, error) {
	objects, err := c.collectionOf(r)
	return requests{collection: objects, labels: r.Labels, fields: r.Fields, bookmarks: r.Bookmarks}, err
}

// collectionOf returns the objects of a resource in its namespace.
func (c *Clients) collectionOf(r Resource) (collection, error) {
	switch r.Example.(type) {
	case runtime.Unstructured:
		all, err := c.dynamic()
		if err != nil {
			return nil, errors.Wrap(err, "creating a dynamic client")
		}
		return unstructuredCollection{all.Resource(r.Mapping.Resource).Namespace(r.Namespace)}, nil
	case *metav1.PartialObjectMetadata:
		all, err := c.metadata()
		if err != nil {
			return nil, errors.Wrap(err, "creating a metadata client")
		}
		return metadataCollection{all.Resource(r.Mapping.Resource).Namespace(r.Namespace)}, nil
	}
	gvk := r.Mapping.GroupVersionKind
	if list := gvk.GroupVersion().WithKind(gvk.Kind + "List"); !c.scheme.Recognizes(list) {
		return nil, errors.WithStack(runtime.NewNotRegisteredErrForKind(c.scheme.Name(), list))
	}
	restClient, err := c.restClient(gvk)
	return typedCollection{clients: c, client: restClient, mapping: r.Mapping, namespace: r.Namespace}, err
}

// requests are the lists and watches of an informer.
type requests struct {
	collection
	labels, fields string
	bookmarks      bool
}

// ListWithContext implements toolscache.ListerWithContext.
func (r requests) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.LabelSelector, options.FieldSelector = r.labels, r.fields
	return r.list(ctx, options)
}

// WatchWithContext implements toolscache.WatcherWithContext.
func (r requests) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.LabelSelector, options.FieldSelector = r.labels, r.fields
	options.Watch, options.AllowWatchBookmarks = true, r.bookmarks
	return r.watch(ctx, options)
}

// IsWatchListSemanticsUnSupported makes client-go list, and not stream lists, if there are no
// bookmarks: a bookmark marks the end of a streamed list.
func (r requests) IsWatchListSemanticsUnSupported() bool { return !r.bookmarks }

// collection has the objects of a kind in a namespace, or in all.
type collection interface {
	list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error)
	watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

type unstructuredCollection struct{ objects dynamic.ResourceInterface }

func (c unstructuredCollection) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return c.objects.List(ctx, options)
}

func (c unstructuredCollection) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return c.objects.Watch(ctx, options)
}

type metadataCollection struct{ objects metadata.ResourceInterface }

func (c metadataCollection) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return c.objects.List(ctx, options)
}

func (c metadataCollection) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return c.objects.Watch(ctx, options)
}

type typedCollection struct {
	clients   *Clients
	client    rest.Interface
	mapping   *meta.RESTMapping
	namespace string
}

func (c typedCollection) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	gvk := c.mapping.GroupVersionKind
	result, err := c.clients.scheme.New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err != nil {
		return nil, errors.WithStack(err)
	}
	if err := c.request(&options).Do(ctx).Into(result); err != nil {
		return nil, err // the Reflector looks at its type
	}
	return result, nil
}

func (c typedCollection) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return c.request(&options).Watch(ctx)
}

func (c typedCollection) request(options *metav1.ListOptions) *rest.Request {
	return c.client.Get().NamespaceIfScoped(c.namespace, c.namespace != "").
		Resource(c.mapping.Resource.Resource).VersionedParams(options, c.clients.codecs().options)
}

// restClient returns the client of a typed kind. Kinds of one version may differ in the formats that
// their types support.
func (c *Clients) restClient(gvk schema.GroupVersionKind) (rest.Interface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.typed[gvk]; known != nil {
		return known, nil
	}
	created, err := apiutil.RESTClientForGVK(gvk, false, false, c.config, c.codecs().objects, c.httpClient)
	if err != nil {
		return nil, errors.Wrapf(err, "creating a client of %s", gvk)
	}
	c.typed[gvk] = created
	return created, nil
}
