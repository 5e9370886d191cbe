package listwatch

import (
	"context"
	"net/http"
	"sync"

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
	codecs     func() codecs
	dynamic    func() (dynamic.Interface, error)
	metadata   func() (metadata.Interface, error)

	mu    sync.Mutex
	typed map[schema.GroupVersionKind]rest.Interface // guarded by mu
}

type codecs struct {
	objects serializer.CodecFactory
	options runtime.ParameterCodec
}

// NewClients returns clients that send requests through httpClient.
func NewClients(config *rest.Config, httpClient *http.Client, scheme *runtime.Scheme) *Clients {
	untyped := func() *rest.Config { // these clients bring serializers of their own
		c := rest.CopyConfig(config)
		c.NegotiatedSerializer = nil
		return c
	}
	return &Clients{config: config, httpClient: httpClient, scheme: scheme,
		codecs: sync.OnceValue(func() codecs {
			return codecs{serializer.NewCodecFactory(scheme), runtime.NewParameterCodec(scheme)}
		}),
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
	var unselected toolscache.ListWatch
	var err error
	switch r.Example.(type) {
	case runtime.Unstructured:
		unselected, err = c.forUnstructured(r)
	case *metav1.PartialObjectMetadata:
		unselected, err = c.forMetadata(r)
	default:
		unselected, err = c.forTyped(r)
	}
	if err != nil {
		return nil, err
	}
	selected := func(options metav1.ListOptions) metav1.ListOptions {
		options.LabelSelector, options.FieldSelector = r.Labels, r.Fields
		return options
	}
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return unselected.ListWithContextFunc(ctx, selected(options))
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch, options.AllowWatchBookmarks = true, r.Bookmarks
			return unselected.WatchFuncWithContext(ctx, selected(options))
		},
	}, nil
}

func (c *Clients) forUnstructured(r Resource) (toolscache.ListWatch, error) {
	all, err := c.dynamic()
	if err != nil {
		return toolscache.ListWatch{}, errors.Wrap(err, "creating a dynamic client")
	}
	resource := all.Resource(r.Mapping.Resource).Namespace(r.Namespace)
	return toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return resource.List(ctx, options)
		},
		WatchFuncWithContext: resource.Watch,
	}, nil
}

func (c *Clients) forMetadata(r Resource) (toolscache.ListWatch, error) {
	all, err := c.metadata()
	if err != nil {
		return toolscache.ListWatch{}, errors.Wrap(err, "creating a metadata client")
	}
	resource := all.Resource(r.Mapping.Resource).Namespace(r.Namespace)
	return toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return resource.List(ctx, options)
		},
		WatchFuncWithContext: resource.Watch,
	}, nil
}

func (c *Clients) forTyped(r Resource) (toolscache.ListWatch, error) {
	gvk := r.Mapping.GroupVersionKind
	list, err := c.scheme.New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err != nil {
		return toolscache.ListWatch{}, errors.WithStack(err)
	}
	restClient, err := c.restClient(gvk)
	if err != nil {
		return toolscache.ListWatch{}, err
	}
	request := func(options *metav1.ListOptions) *rest.Request {
		return restClient.Get().NamespaceIfScoped(r.Namespace, r.Namespace != "").Resource(r.Mapping.Resource.Resource).
			VersionedParams(options, c.codecs().options)
	}
	return toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			result := list.DeepCopyObject()
			if err := request(&options).Do(ctx).Into(result); err != nil {
				return nil, err // the Reflector looks at its type
			}
			return result, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return request(&options).Watch(ctx)
		},
	}, nil
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
