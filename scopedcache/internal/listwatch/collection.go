package listwatch

import (
	"context"
	"net/http"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// collection has the objects of a kind in a namespace, or in all, in one representation.
type collection interface {
	list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error)
	get(ctx context.Context, name string, into client.Object) error
	httpClient() *http.Client // of the identity
	client(httpClient *http.Client) (rest.Interface, error)
	newRequest(client rest.Interface) *rest.Request
	// decoders decode what a watch receives.
	decoders() runtime.NegotiatedSerializer
}

// kind is what all representations have in common. Paths have the resource in lower case, as
// Kubernetes requires; client-go's metadata client, which lists metadata, takes it as it is.
type kind struct {
	clients   *Clients
	config    *rest.Config
	mapping   *meta.RESTMapping
	namespace string
}

func listOf(gvk schema.GroupVersionKind) schema.GroupVersionKind {
	return gvk.GroupVersion().WithKind(gvk.Kind + "List")
}

func (k kind) httpClient() *http.Client { return k.clients.httpClient }

func (k kind) newRequest(client rest.Interface) *rest.Request {
	return client.Get().NamespaceIfScoped(k.namespace, k.namespace != "").Resource(k.mapping.Resource.Resource)
}

// restClient returns a client of the scheme's types or of unstructured objects.
func (k kind) restClient(httpClient *http.Client, isUnstructured bool) (rest.Interface, error) {
	gvk := k.mapping.GroupVersionKind
	created, err := apiutil.RESTClientForGVK(gvk, isUnstructured, isUnstructured, k.config, k.clients.codecs().objects,
		httpClient)
	return created, errors.Wrapf(err, "creating a client of %s", gvk)
}

type typedCollection struct{ kind }

func (c typedCollection) client(httpClient *http.Client) (rest.Interface, error) {
	return c.restClient(httpClient, false)
}

func (c typedCollection) decoders() runtime.NegotiatedSerializer {
	return c.clients.codecs().objects.WithoutConversion()
}

func (c typedCollection) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	result, err := c.clients.scheme.New(listOf(c.mapping.GroupVersionKind))
	if err != nil {
		return nil, errors.WithStack(err)
	}
	return result, listInto(ctx, c, options, result)
}

type unstructuredCollection struct{ kind }

func (c unstructuredCollection) client(httpClient *http.Client) (rest.Interface, error) {
	return c.restClient(httpClient, true)
}

func (c unstructuredCollection) decoders() runtime.NegotiatedSerializer {
	return dynamic.ConfigFor(&rest.Config{}).NegotiatedSerializer
}

func (c unstructuredCollection) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	result := &unstructured.UnstructuredList{}
	return result, listInto(ctx, c, options, result)
}

// listInto sends a list of a collection. Errors are as client-go returns them: the Reflector looks
// at their types.
func listInto(ctx context.Context, c collection, options metav1.ListOptions, result runtime.Object) error {
	client, err := c.client(c.httpClient())
	if err != nil {
		return err
	}
	return c.newRequest(client).SpecificallyVersionedParams(&options, metav1.ParameterCodec, metav1.Unversioned).Do(ctx).
		Into(result)
}

func (c typedCollection) get(ctx context.Context, name string, into client.Object) error {
	return getInto(ctx, c, name, into)
}

func (c unstructuredCollection) get(ctx context.Context, name string, into client.Object) error {
	return getInto(ctx, c, name, into)
}

func getInto(ctx context.Context, c collection, name string, into client.Object) error {
	client, err := c.client(c.httpClient())
	if err != nil {
		return err
	}
	return c.newRequest(client).Name(name).Do(ctx).Into(into)
}

func (c metadataCollection) get(ctx context.Context, name string, into client.Object) error {
	client, err := metadata.NewForConfigAndClient(c.config, c.httpClient())
	if err != nil {
		return errors.Wrap(err, "creating a metadata client")
	}
	found, err := client.Resource(c.mapping.Resource).Namespace(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	metadata, ok := into.(*metav1.PartialObjectMetadata)
	if !ok {
		return errors.Errorf("%T is no metadata", into)
	}
	found.DeepCopyInto(metadata)
	return nil
}

// metadataCollection lists with client-go's metadata client, which knows API servers that send
// whole objects.
type metadataCollection struct{ kind }

// acceptMetadata asks for the metadata of each object of a watch.
const acceptMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

func (c metadataCollection) client(httpClient *http.Client) (rest.Interface, error) {
	config := metadata.ConfigFor(c.config)
	version := c.mapping.GroupVersionKind.GroupVersion()
	if config.GroupVersion, config.APIPath = &version, "/apis"; version.Group == "" {
		config.APIPath = "/api"
	}
	if httpClient == nil {
		return nil, errors.New("creating a metadata client: no HTTP client")
	}
	created, err := rest.RESTClientForConfigAndClient(config, httpClient)
	return created, errors.Wrap(err, "creating a metadata client")
}

func (c metadataCollection) newRequest(client rest.Interface) *rest.Request {
	return c.kind.newRequest(client).SetHeader("Accept", acceptMetadata)
}

func (c metadataCollection) decoders() runtime.NegotiatedSerializer {
	return metadata.ConfigFor(&rest.Config{}).NegotiatedSerializer
}

func (c metadataCollection) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	client, err := metadata.NewForConfigAndClient(c.config, c.httpClient())
	if err != nil {
		return nil, errors.Wrap(err, "creating a metadata client")
	}
	return client.Resource(c.mapping.Resource).Namespace(c.namespace).List(ctx, options)
}
