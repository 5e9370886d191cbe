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
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// Clients lists and watches kinds in each representation, as one identity. A client exists only
// while its request is sent: requests are rare, and clients take memory. Methods may be called from
// any goroutine.
type Clients struct {
	config     *rest.Config
	httpClient *http.Client
	scheme     *runtime.Scheme
	codecs     func() *codecs

	mu      sync.Mutex
	limited map[schema.GroupVersionKind]*rest.Config // guarded by mu: of each kind, if config has no limiter
}

// codecs encode and decode the types of a scheme, also those that the scheme learns later.
type codecs struct {
	scheme  *runtime.Scheme
	objects serializer.CodecFactory
}

// latestCodecs are those of the scheme that was used last. They take 4 KiB, and nearly all
// processes have one scheme for all of their caches.
var latestCodecs atomic.Pointer[codecs]

func codecsOf(scheme *runtime.Scheme) *codecs {
	if known := latestCodecs.Load(); known != nil && known.scheme == scheme {
		return known
	}
	created := &codecs{scheme, serializer.NewCodecFactory(scheme)}
	latestCodecs.Store(created)
	return created
}

// NewClients returns clients that send requests through httpClient.
func NewClients(config *rest.Config, httpClient *http.Client, scheme *runtime.Scheme) *Clients {
	return &Clients{
		config:     config,
		httpClient: httpClient,
		scheme:     scheme,
		codecs:     sync.OnceValue(func() *codecs { return codecsOf(scheme) }),
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
	Observer  Observer // of the watches; nil for none
}

// For returns the lists and watches of a resource. For sends no request.
func (c *Clients) For(r Resource) (toolscache.ListerWatcherWithContext, error) {
	objects, err := c.collectionOf(r)
	return requests{
		collection: objects,
		labels:     r.Labels,
		fields:     r.Fields,
		bookmarks:  r.Bookmarks,
		observer:   r.Observer,
	}, err
}

// Get gets an object of a resource, in the representation of the example. Errors are as client-go
// returns them.
func (c *Clients) Get(ctx context.Context, r Resource, name string, into client.Object) error {
	objects, err := c.collectionOf(r)
	if err != nil {
		return err
	}
	return objects.get(ctx, name, into)
}

// collectionOf returns the objects of a resource in its namespace.
func (c *Clients) collectionOf(r Resource) (collection, error) {
	gvk := r.Mapping.GroupVersionKind
	of := kind{clients: c, config: c.configOf(gvk), mapping: r.Mapping, namespace: r.Namespace}
	var objects collection
	switch r.Example.(type) {
	case runtime.Unstructured:
		objects = unstructuredCollection{of}
	case *metav1.PartialObjectMetadata:
		objects = metadataCollection{of}
	default:
		if list := listOf(gvk); !c.scheme.Recognizes(list) {
			return nil, errors.WithStack(runtime.NewNotRegisteredErrForKind(c.scheme.Name(), list))
		}
		objects = typedCollection{of}
	}
	_, err := objects.client(c.httpClient)
	return objects, err
}

// requests are the lists and watches of an informer.
type requests struct {
	collection
	labels, fields string
	bookmarks      bool
	observer       Observer
}

// ListWithContext implements toolscache.ListerWithContext.
func (r requests) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.LabelSelector, options.FieldSelector = r.labels, r.fields
	return r.list(permissions.ByInformer(ctx), options)
}

// WatchWithContext implements toolscache.WatcherWithContext.
func (r requests) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.LabelSelector, options.FieldSelector = r.labels, r.fields
	options.Watch, options.AllowWatchBookmarks = true, r.bookmarks
	return watchOf(permissions.ByInformer(ctx), r.collection, options, r.observer)
}

// IsWatchListSemanticsUnSupported makes client-go list, and not stream lists, if there are no
// bookmarks: a bookmark marks the end of a streamed list.
func (r requests) IsWatchListSemanticsUnSupported() bool { return !r.bookmarks }

// configOf returns the configuration of a kind. If the identity has no rate limiter, all requests
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
