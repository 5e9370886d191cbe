package clustercache

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/extensionsource"
	"github.com/latchkey-dev/latchkey/internal/watches"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// ClusterCache keeps one connection per extension. All methods may be called from any goroutine.
// None does I/O, and none but Unwatch waits. Those that return an error, Unwatch excepted, return a
// *NotConnectedError (errors.Is ErrNotConnected) when the extension is not connected, or not known.
type ClusterCache interface {
	// GetClient returns a client that reads from the connection's cache, unstructured objects too,
	// and writes to the API server. A cached read takes Client.Timeout at the most, or as long as
	// its context if that is shorter. So does a request, once the identity's rate limit lets it go;
	// the first that needs a kind nobody at the API server has asked for may take Client.Timeout
	// more, whatever its context, to discover it.
	GetClient(ctx context.Context, extension client.ObjectKey) (client.Client, error)

	// GetReader returns the cached reader of GetClient. It reads everything from the cache, also
	// what Client.Cache.DisableFor lists.
	GetReader(ctx context.Context, extension client.ObjectKey) (client.Reader, error)

	// GetUncachedClient returns a client that reads from the API server.
	GetUncachedClient(ctx context.Context, extension client.ObjectKey) (client.Client, error)

	// GetRESTConfig returns a config for clients of other kinds. It authenticates as the identity,
	// renewals included, and carries no secret. It is the caller's own copy; what it shares is the
	// identity's rate limit. Its Timeout is Client.Timeout, which ends whole responses: set it to 0
	// for watches, logs and exec. Requests to another Host are refused. Clients that dial by
	// themselves, as client-go's exec, attach and port-forward do, take a credential with a token:
	// ServiceAccountTokens, or a kubeconfig with a token.
	GetRESTConfig(ctx context.Context, extension client.ObjectKey) (*rest.Config, error)

	// GetCluster returns the connection as multi-cluster code expects it: cache, client, mapper,
	// HTTP client (without a timeout), event recorders. The cache runs without its Start, which
	// returns the *NotConnectedError when the connection ends; so do not add it to a manager, which
	// would end too.
	GetCluster(ctx context.Context, extension client.ObjectKey) (cluster.Cluster, error)

	// Watch feeds watcher's controller with events about the objects that the extension's identity
	// sees. There is one registration per name and dependent: the same again is a no-op, whoever
	// its controller, and the same name for another kind or scope is ErrWatchConflict. An error
	// means that nothing was registered. It waits for nothing: that the kind is not served, or that
	// the identity may not list and watch it, is told to OnError, and the controller is fed as soon
	// as that has changed. Handler, predicates, OnError and controller are those of the first
	// registration under the name, as long as it lives.
	//
	// Errors are *NotConnectedError, ErrWatchConflict, a type that the scheme does not know, and
	// options that are incomplete.
	//
	// A registration survives disconnects, and the loss of rights and kinds. When they are back all
	// objects are delivered again, as creations, and then what was deleted in between, or is not
	// for the new identity to see, as deletions whose DeleteStateUnknown is true and whose object
	// has name, UID, labels and owners only.
	Watch(ctx context.Context, extension client.ObjectKey, watcher Watcher) error

	// WatchContent makes the kinds of the content's objects what is watched under its name: it
	// starts what is new and ends what is gone. The same again is a no-op. Otherwise it is as
	// Watch, and Unwatch ends it. A name is for Watch or for WatchContent: the other one is
	// ErrWatchConflict.
	WatchContent(ctx context.Context, extension client.ObjectKey, content ContentWatch) error

	// Unwatch takes dependents from the watch of that name, all if none are given, and ends it with
	// the last. If nothing is registered under that name that is no error; today it always returns
	// nil. After the last one's Unwatch no handler or OnError of the watch is called any more. For
	// that it waits for one that is being called, but no longer than a second or than ctx lives. It
	// may be called inside of a handler or OnError, and with the context that they were given it
	// waits for nothing.
	Unwatch(ctx context.Context, extension client.ObjectKey, name string, dependents ...types.UID) error

	// GetHealthCheckingState returns what the probes of the connection found; zero if the extension
	// is unknown.
	GetHealthCheckingState(ctx context.Context, extension client.ObjectKey) HealthCheckingState

	// GetConnectionState returns a snapshot of the connection; false if the extension is unknown.
	GetConnectionState(ctx context.Context, extension client.ObjectKey) (ConnectionState, bool)

	// ListConnectionStates returns a snapshot of all connections, sorted by key.
	ListConnectionStates(ctx context.Context) []ConnectionState

	// GetExtensionSource returns a source for a controller: mapFunc turns an extension that
	// connected, disconnected, stayed disconnected for another reason or after another edit, was
	// filtered out, was deleted, or whose cache lost or won a right or a kind that it had settled
	// on, into requests. It is called once at a time, with an object of its own. A source that
	// starts gets one event per known extension. Events of one extension that are not yet delivered
	// are one; after a deletion mapFunc gets the object last seen. That a connect is under way is
	// not told: until it ends the extension is not connected, for the reason that was told.
	// Delivery waits for nobody but mapFunc. controllerName is for logs. WatchForProbeFailure asks
	// for events of another sort. TypedExtensionSource is for controllers with requests of other
	// types.
	GetExtensionSource(controllerName string, mapFunc handler.MapFunc, opts ...GetExtensionSourceOption) source.Source
}

// What accessor, its packages and healthprobe declare, by the names under which users know it. The
// fields are documented there.
type (
	// ConnectionState is a snapshot of one extension's connection.
	ConnectionState = accessor.ConnectionState
	// WatchState is a snapshot of one watch.
	WatchState = accessor.WatchState
	// HealthCheckingState is what the probes of a connection found.
	HealthCheckingState = accessor.HealthCheckingState
	// Identity is a user as the API server states it.
	Identity = accessor.Identity
	// Phase is where a connection stands.
	Phase = accessor.Phase
	// Reason says why an extension is not connected.
	Reason = accessor.Reason
	// NotConnectedError says which extension is not connected, why and since when.
	NotConnectedError = accessor.NotConnectedError
	// NoTokenError is the error of a request that was not sent for want of a valid token, although
	// the extension is connected. Return it and let your queue try again.
	NoTokenError = credential.NoTokenError
	// Watcher says what to watch and who is told. NewWatcher makes one.
	Watcher = watches.Watcher
	// WatcherOptions are TypedWatcherOptions for ordinary controllers.
	WatcherOptions = watches.WatcherOptions
	// TypedWatcherOptions say what to watch with an extension's connection, and which controller is
	// told.
	TypedWatcherOptions[object client.Object, request comparable] = watches.TypedWatcherOptions[object, request]
	// ContentWatch says of what content to watch the kinds, and who is told. NewContentWatch makes
	// one.
	ContentWatch = watches.ContentWatch
	// ContentWatchOptions are TypedContentWatchOptions for ordinary controllers.
	ContentWatchOptions = watches.ContentWatchOptions
	// TypedContentWatchOptions say what an extension's content is, and which controller is told.
	TypedContentWatchOptions[request comparable] = watches.TypedContentWatchOptions[request]
	// WatchError is what OnError of a watch is told.
	WatchError = watches.WatchError
	// Scope is the part of a kind that a watch sees.
	Scope = scopedcache.Scope
	// ScopeState is a snapshot of one informer of a connection's cache.
	ScopeState = scopedcache.ScopeState
	// SourceWatcher is what a watch needs of a controller.
	SourceWatcher[request comparable] = watches.SourceWatcher[request]
	// CacheOptions configure the cache of every connection.
	CacheOptions = accessor.CacheOptions
	// CacheOptionsIndex is a field index of the caches.
	CacheOptionsIndex = accessor.CacheOptionsIndex
	// ClientOptions configure the clients of every connection.
	ClientOptions = accessor.ClientOptions
	// MetricsOptions say what is told to Prometheus beside the sums.
	MetricsOptions = accessor.MetricsOptions
	// ClientCacheOptions say which reads bypass the cache.
	ClientCacheOptions = accessor.ClientCacheOptions
)

// States of a scope, in ScopeState and WatchError.
const (
	ScopeSyncing   = scopedcache.Syncing   // the first list is under way
	ScopeSynced    = scopedcache.Synced    // all is well
	ScopeForbidden = scopedcache.Forbidden // the identity may not list and watch; it is asked again
	ScopeNotServed = scopedcache.NotServed // there is no such kind; it is looked for again
	ScopeFailing   = scopedcache.Failing   // another error; what there was is still read
)

// Phases of a connection.
const (
	Disconnected = accessor.Disconnected // there is none; Reason says why
	Connecting   = accessor.Connecting   // a connect is under way; Reason is that of the last disconnect
	Connected    = accessor.Connected    // there is one, and the API server stated whose
)

// Reasons for not being connected; package accessor says more of each.
const (
	NotStarted             = accessor.NotStarted
	InvalidReference       = accessor.InvalidReference
	ServiceAccountNotFound = accessor.ServiceAccountNotFound
	TokenRequestFailed     = accessor.TokenRequestFailed
	InvalidCredential      = accessor.InvalidCredential
	NotAllowed             = accessor.NotAllowed
	OperatorForbidden      = accessor.OperatorForbidden
	Unauthorized           = accessor.Unauthorized
	IdentityMismatch       = accessor.IdentityMismatch
	Unreachable            = accessor.Unreachable
	ProbeFailed            = accessor.ProbeFailed
	Filtered               = accessor.Filtered
	Deleted                = accessor.Deleted
)

var (
	// ErrNotConnected is in the chain of every error that is due to an extension not being
	// connected.
	ErrNotConnected = accessor.ErrNotConnected
	// ErrWatchConflict is returned by Watch and WatchContent for a name that is in use for another
	// kind or scope, or by the other one of the two.
	ErrWatchConflict = accessor.ErrWatchConflict
)

// NewWatcher makes a Watcher.
func NewWatcher[object client.Object, request comparable](options TypedWatcherOptions[object, request]) Watcher {
	return watches.NewWatcher(options)
}

// NewContentWatch makes a ContentWatch.
func NewContentWatch[request comparable](options TypedContentWatchOptions[request]) ContentWatch {
	return watches.NewContentWatch(options)
}

// clusterCache is the ClusterCache that SetupWithManager returns.
type clusterCache struct {
	set     *accessor.Set
	sources *extensionsource.Hub
}

var _ ClusterCache = (*clusterCache)(nil)

func (c *clusterCache) GetClient(_ context.Context, extension client.ObjectKey) (client.Client, error) {
	return c.set.GetClient(extension)
}

func (c *clusterCache) GetReader(_ context.Context, extension client.ObjectKey) (client.Reader, error) {
	return c.set.GetReader(extension)
}

func (c *clusterCache) GetUncachedClient(_ context.Context, extension client.ObjectKey) (client.Client, error) {
	return c.set.GetUncachedClient(extension)
}

func (c *clusterCache) GetRESTConfig(_ context.Context, extension client.ObjectKey) (*rest.Config, error) {
	return c.set.GetRESTConfig(extension)
}

func (c *clusterCache) GetCluster(_ context.Context, extension client.ObjectKey) (cluster.Cluster, error) {
	return c.set.GetCluster(extension)
}

func (c *clusterCache) Watch(ctx context.Context, extension client.ObjectKey, watcher Watcher) error {
	return c.set.Watch(ctx, extension, watcher)
}

func (c *clusterCache) WatchContent(ctx context.Context, extension client.ObjectKey, content ContentWatch) error {
	return c.set.WatchContent(ctx, extension, content)
}

func (c *clusterCache) Unwatch(ctx context.Context, extension client.ObjectKey, name string,
	dependents ...types.UID) error {
	c.set.Unwatch(ctx, extension, name, dependents...)
	return nil
}

func (c *clusterCache) GetHealthCheckingState(_ context.Context, extension client.ObjectKey) HealthCheckingState {
	state, _ := c.set.State(extension)
	return state.Health
}

func (c *clusterCache) GetConnectionState(_ context.Context, extension client.ObjectKey) (ConnectionState, bool) {
	return c.set.State(extension)
}

func (c *clusterCache) ListConnectionStates(context.Context) []ConnectionState {
	return c.set.States()
}

// NodeProviderIDIndex indexes Nodes by .spec.providerID, for those who connect to workload
// clusters. Put it into Options.Cache.Indexes and list with
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
