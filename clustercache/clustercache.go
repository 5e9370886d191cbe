package clustercache

import (
	"context"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/internal/extensionsource"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/statechanges"
)

// ClusterCache keeps one connection per extension. All methods may be called from any goroutine. No
// method does I/O, and only Unwatch waits. Methods that return an error return a *NotConnectedError
// (errors.Is ErrNotConnected) when the extension is not connected or not known. Any other error is
// a mistake of the caller that no time heals, such as a key without the namespace of a namespaced
// kind.
type ClusterCache interface {
	// GetClient returns a client that reads from the connection's cache, unstructured objects too,
	// and writes to the API server. A cached read takes at most Client.Timeout, or ends with its
	// context if that is earlier. The same bound applies to a request, after the identity's rate
	// limit admits it. The first request for a kind at an API server also discovers the kind, until
	// its context ends. If the API server has removed or changed kinds, a request may wait a second
	// for discovery, and then goes where the kind was or is.
	GetClient(ctx context.Context, extension client.ObjectKey) (client.Client, error)

	// GetReader returns the cached reader of GetClient. The reader reads everything from the cache,
	// including the kinds that Client.Cache.DisableFor lists.
	GetReader(ctx context.Context, extension client.ObjectKey) (client.Reader, error)

	// GetUncachedClient returns a client that reads from the API server.
	GetUncachedClient(ctx context.Context, extension client.ObjectKey) (client.Client, error)

	// GetRESTConfig returns a config for other types of clients. The config authenticates as the
	// identity, with renewed credentials, and contains no secret of it; Proxy is that of a
	// kubeconfig with proxy-url, with its user and password. The config is the caller's own copy,
	// and shares only the identity's rate limit. Its Timeout is Client.Timeout, which ends whole
	// responses: set Timeout to 0 for watches, logs and exec. Requests to another Host fail. Some
	// clients dial by themselves: client-go's exec, attach and port-forward. They need a credential
	// with a token: ServiceAccountTokens, or a kubeconfig with a token.
	GetRESTConfig(ctx context.Context, extension client.ObjectKey) (*rest.Config, error)

	// GetCluster returns the connection in the form that multi-cluster code expects: cache, client,
	// mapper, HTTP client (without a timeout), event recorders. The cache runs without a call of
	// Start. Start returns the *NotConnectedError when the connection ends. Do not add the cluster
	// to a manager: the manager would end with the connection. Until it ends, each call returns the
	// same value, and after a reconnect another one.
	GetCluster(ctx context.Context, extension client.ObjectKey) (cluster.Cluster, error)

	// Watch delivers events to watcher's controller about the objects that the extension's identity
	// may list and watch. There is one registration per name and dependent. To register the same
	// again is a no-op, even for another controller. The first registration under a name determines
	// handler, predicates, OnError and controller, until that registration ends.
	//
	// Watch does not wait. If the kind is not served, or the identity may not list and watch it,
	// OnError receives a WatchError. Events follow as soon as the kind and the permission are
	// there.
	//
	// A registration survives disconnects, and the loss of permissions and kinds. When they are
	// back, the handler receives all objects again as creations. Then the handler receives
	// deletions of the objects that were deleted in between, or that the new identity may not see.
	// These deletions have DeleteStateUnknown set, and their object has only name, UID, labels and
	// owners.
	//
	// Watch returns *NotConnectedError, or ErrWatchConflict for a name that another kind or scope
	// uses. A type that the scheme does not know and incomplete options are errors too. After an
	// error nothing is registered.
	Watch(ctx context.Context, extension client.ObjectKey, watcher Watcher) error

	// WatchContent watches exactly the kinds of the content's objects under the content's name.
	// Another call with the same name starts watches for new kinds and ends watches for kinds that
	// are gone. A call with the same kinds is a no-op. Otherwise WatchContent behaves like Watch,
	// and Unwatch ends it. A name is either for Watch or for WatchContent: the other method returns
	// ErrWatchConflict.
	WatchContent(ctx context.Context, extension client.ObjectKey, content ContentWatch) error

	// Unwatch removes dependents from the watch of that name, or all dependents if none are given.
	// When the last dependent is gone, the watch ends, and from then on neither its handler nor
	// OnError is called. Unwatch therefore waits up to one second, and no longer than ctx, for a
	// call in progress. Unwatch may be called inside a handler or OnError, and does not wait if it
	// gets the context that they received. A name without a registration is ignored.
	Unwatch(ctx context.Context, extension client.ObjectKey, name string, dependents ...types.UID)

	// For returns the calls above bound to the object as the caller read it. They succeed only if
	// the connection was made for the object's UID, and for the ServiceAccount or Secret that this
	// very object names. With credential.FromRESTConfigMapper they succeed only if the connection
	// was made, or confirmed, for the object's metadata.generation; or for its resourceVersion, if
	// the kind has no generation. A controller that acts on fields of the extension uses For, so
	// that it never acts as an identity that other fields named.
	//
	// While the extension is not connected, the calls return the reason of that, for any object.
	// While it is connected for another object or reference, they return a *NotConnectedError with
	// ReasonStale: the caller's object is older or newer. Return without a requeue: the next event
	// of the caller's own watch of the kind, or of the extension source, leads here again.
	//
	// Pass the whole object, with the Go type of Options.Object. Functions of Options.Credentials
	// receive that very object. For reads the object during the call only. Each call of the result
	// checks again, and a client that it returned ends with its connection. For an object of
	// another kind or Go type, or without a UID, the calls return an error that is not
	// ErrNotConnected. While connected, an object for which a function of Options.Credentials fails
	// or panics stays stale: the text of Err says why.
	//
	// With FromRESTConfigMapper, changes of labels and annotations are not noticed. If a Reference
	// function or the function of Choose reads labels or annotations, do not filter your own watch
	// with a GenerationChangedPredicate.
	For(ctx context.Context, extension client.Object) Bound

	// GetHealthCheckingState returns the results of the connection's probes, or zero if the
	// extension is unknown.
	GetHealthCheckingState(ctx context.Context, extension client.ObjectKey) HealthCheckingState

	// GetConnectionState returns a snapshot of the connection, or false if the extension is
	// unknown.
	GetConnectionState(ctx context.Context, extension client.ObjectKey) (ConnectionState, bool)

	// GetNotOwned returns an extension that exists and that, by Options.Ownership, is not this
	// replica's: another one has it, or none has it yet. It returns false for any other extension.
	GetNotOwned(ctx context.Context, extension client.ObjectKey) (NotOwnedExtension, bool)

	// ListConnectionStates returns a snapshot of all connections, sorted by key.
	ListConnectionStates(ctx context.Context) []ConnectionState

	// SubscribeStates calls f with the keys of extensions whose ConnectionState has changed, until
	// ctx is done. The first call has the keys of all extensions, and may have none. It comes when
	// the manager has started and leads, and every extension that existed then has been reconciled
	// once. A key whose extension is unknown to GetConnectionState is that of an extension that was
	// deleted or filtered out, or is not this replica's: see GetNotOwned.
	//
	// Every change counts, but the times of probes, the numbers of objects, and Permissions:
	// connects and disconnects, retries, reasons, newer tokens, watches, scopes and their states,
	// and the results of probes. Changes of an extension are merged until f is called. Calls are
	// one at a time, in the goroutine of the caller, and a slow f delays nothing but its own next
	// call. What only a served request or another extension's probe shows follows within a quarter
	// of HealthProbe.Interval.
	SubscribeStates(ctx context.Context, f func(extensions []client.ObjectKey))

	// GetExtensionSource returns a source for a controller. mapFunc maps an extension to requests.
	// The source calls mapFunc when an extension
	//
	//   - connected or disconnected,
	//   - stayed disconnected for another reason or after another edit,
	//   - was filtered out or deleted,
	//   - had a change in its cache: after an informer settled (synced, Forbidden or not served),
	//     it lost or gained the permission or the kind,
	//   - may do what it was refused before, if Options.Permissions.Record is set: see there.
	//
	// When the source starts, it delivers one event per known extension, whose requests have the
	// priority handler.LowPriority where the controller's queue has priorities. Undelivered events
	// of one extension are merged into one. After a deletion mapFunc receives the object last seen.
	// The source delivers no event when a connect begins. Until the connect ends, the extension is
	// not connected, for the reason of the last event.
	//
	// The source calls mapFunc once at a time, with a copy of the object. Delivery waits for
	// mapFunc only. controllerName is for logs. WatchForProbeFailure adds events about probes that
	// fail. TypedExtensionSource is for controllers with requests of other types.
	GetExtensionSource(controllerName string, mapFunc handler.MapFunc, opts ...GetExtensionSourceOption) source.Source
}

// clusterCache is the ClusterCache that SetupWithManager returns.
type clusterCache struct {
	set         *accessor.Set
	metrics     *metrics.Cache
	sources     *extensionsource.Hub
	initialPass <-chan struct{} // closed when every extension has been reconciled once
	states      *statechanges.Hub
	scheme      *runtime.Scheme
	gvk         schema.GroupVersionKind // of the extensions
	goType      reflect.Type            // of Options.Object
	referenceOf func(client.Object) (identity.Reference, error)
}

var _ ClusterCache = (*clusterCache)(nil)

func (c *clusterCache) GetClient(ctx context.Context, extension client.ObjectKey) (client.Client, error) {
	return c.set.GetClient(ctx, extension)
}

func (c *clusterCache) GetReader(ctx context.Context, extension client.ObjectKey) (client.Reader, error) {
	return c.set.At(extension).GetReader(ctx)
}

func (c *clusterCache) GetUncachedClient(ctx context.Context, extension client.ObjectKey) (client.Client, error) {
	return c.set.At(extension).GetUncachedClient(ctx)
}

func (c *clusterCache) GetRESTConfig(ctx context.Context, extension client.ObjectKey) (*rest.Config, error) {
	return c.set.At(extension).GetRESTConfig(ctx)
}

func (c *clusterCache) GetCluster(ctx context.Context, extension client.ObjectKey) (cluster.Cluster, error) {
	return c.set.At(extension).GetCluster(ctx)
}

func (c *clusterCache) Watch(ctx context.Context, extension client.ObjectKey, watcher Watcher) error {
	return c.set.At(extension).Watch(ctx, watcher)
}

func (c *clusterCache) WatchContent(ctx context.Context, extension client.ObjectKey, content ContentWatch) error {
	return c.set.At(extension).WatchContent(ctx, content)
}

func (c *clusterCache) Unwatch(ctx context.Context, extension client.ObjectKey, name string,
	dependents ...types.UID) {
	c.set.At(extension).Unwatch(ctx, name, dependents...)
}

func (c *clusterCache) GetHealthCheckingState(_ context.Context, extension client.ObjectKey) HealthCheckingState {
	state, _ := c.set.At(extension).State()
	return HealthCheckingState(state.Health)
}

func (c *clusterCache) GetConnectionState(_ context.Context, extension client.ObjectKey) (ConnectionState, bool) {
	state, known := c.set.At(extension).State()
	return connectionStateOf(state), known
}

func (c *clusterCache) GetNotOwned(_ context.Context, extension client.ObjectKey) (NotOwnedExtension, bool) {
	found, ok := c.set.NotOwned(extension)
	return NotOwnedExtension(found), ok
}

func (c *clusterCache) ListConnectionStates(_ context.Context) (states []ConnectionState) {
	for _, state := range c.set.States() {
		states = append(states, connectionStateOf(state))
	}
	return states
}

func (c *clusterCache) SubscribeStates(ctx context.Context, f func(extensions []client.ObjectKey)) {
	c.states.Subscribe(ctx, c.initialPass, c.set.AllKeys, f)
}

// NodeProviderIDIndex indexes Nodes by .spec.providerID, for operators that connect to workload
// clusters. Add the index to Options.Cache.Indexes and list with
// client.MatchingFields{"spec.providerID": id}.
var NodeProviderIDIndex = CacheOptionsIndex{
	Object: &corev1.Node{},
	Field:  "spec.providerID",
	ExtractValue: func(object client.Object) []string {
		if node, ok := object.(*corev1.Node); ok && node.Spec.ProviderID != "" {
			return []string{node.Spec.ProviderID}
		}
		return nil
	},
}
