package listwatch

import (
	"cmp"
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
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Clients lists and watches kinds in each representation, as one identity. Methods may be called from
// any goroutine.
type Clients struct {
	config     *rest.Config
	httpClient *http.Client
	scheme     *runtime.Scheme
	codecs     func() *codecs
	dynamic    func() (dynamic.Interface, error) // a client is made when it is first needed
	metadata   func() (metadata.Interface, error)

	mu      sync.Mutex
	limited map[schema.GroupVersionKind]*rest.Config // guarded by mu: of typed kinds, if config has no limiter
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
	objects := typedCollection{clients: c, config: c.configOf(gvk), mapping: r.Mapping, namespace: r.Namespace}
	_, err := objects.client()
	return objects, err
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

// typedCollection creates a client for each request. Requests are rare, and clients take memory.
type typedCollection struct {
	clients   *Clients
	config    *rest.Config
	mapping   *meta.RESTMapping
	namespace string
}

func (c typedCollection) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	gvk := c.mapping.GroupVersionKind
	result, err := c.clients.scheme.New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err != nil {
		return nil, errors.WithStack(err)
	}
	request, err := c.request(&options)
	if err != nil {
		return nil, err
	}
	if err := request.Do(ctx).Into(result); err != nil {
		return nil, err // the Reflector looks at its type
	}
	return result, nil
}

func (c typedCollection) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	request, err := c.request(&options)
	if err != nil {
		return nil, err
	}
	return request.Watch(ctx)
}

func (c typedCollection) request(options *metav1.ListOptions) (*rest.Request, error) {
	restClient, err := c.client()
	if err != nil {
		return nil, err
	}
	return restClient.Get().NamespaceIfScoped(c.namespace, c.namespace != "").
		Resource(c.mapping.Resource.Resource).VersionedParams(options, c.clients.codecs().options), nil
}

func (c typedCollection) client() (rest.Interface, error) {
	gvk := c.mapping.GroupVersionKind
	created, err := apiutil.RESTClientForGVK(gvk, false, false, c.config, c.clients.codecs().objects, c.clients.httpClient)
	return created, errors.Wrapf(err, "creating a client of %s", gvk)
}

// configOf returns the configuration of a typed kind. If the identity has no rate limiter, all requests
// for the kind share one.
func (c *Clients) configOf(gvk schema.GroupVersionKind) *rest.Config {
	if c.config.RateLimiter != nil || c.config.QPS < 0 {
		return c.config
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.limited[gvk]; known != nil {
		return known
	}
	config := rest.CopyConfig(c.config)
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(
		cmp.Or(config.QPS, rest.DefaultQPS), cmp.Or(config.Burst, rest.DefaultBurst))
	if c.limited == nil {
		c.limited = map[schema.GroupVersionKind]*rest.Config{}
	}
	c.limited[gvk] = config
	return config
}
