package fake

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/extensionsource"
)

// Target is the host in the connections of a Cache.
const Target = "https://fake.invalid"

// ErrProbe is the LastError of an extension after FailProbe.
var ErrProbe = errors.New("the fake's probe fails")

// longAgo is longer than any WatchForProbeFailure.
const longAgo = 10 * 365 * 24 * time.Hour

// Cache is a fake clustercache.ClusterCache. Its methods may be called from any goroutine.
type Cache struct{ extensions }

var _ clustercache.ClusterCache = (*Cache)(nil)

// NewFakeCache returns a Cache that knows one extension, connected with c. watchNames are the names
// of existing watches: Watch with such a name succeeds and does nothing. If c is nil, the extension
// is not connected, and errors have this reason.
func NewFakeCache(c client.Client, extension client.ObjectKey, watchNames ...string) *Cache {
	cache := NewFakeEmptyCache()
	cache.connect(extension, c, watchNames)
	return cache
}

// NewFakeEmptyCache returns a Cache that knows no extension.
func NewFakeEmptyCache() *Cache {
	return &Cache{extensions{byKey: map[client.ObjectKey]*extension{}}}
}

// Connect connects an extension with c, and sends an event to the sources. An unknown extension
// becomes known. An existing connection ends first, and calls on its handles fail.
func (f *Cache) Connect(key client.ObjectKey, c client.Client) { f.connect(key, c, nil) }

// ConnectAs connects an extension with c, as the identity, and sends an event to the sources. Later
// connects have the same identity.
func (f *Cache) ConnectAs(key client.ObjectKey, c client.Client, identity clustercache.Identity) {
	f.SetIdentity(key, identity)
	f.Connect(key, c)
}

// Disconnect ends the connection of an extension, and sends an event to the sources. An unknown
// extension becomes known. With reason Deleted or Filtered, the extension is not known any more
// afterwards, and its watches end.
func (f *Cache) Disconnect(key client.ObjectKey, reason clustercache.Reason) {
	f.disconnect(key, reason, "the fake disconnected it")
}

// FailProbe lets a probe of an extension fail. A connected extension stays connected. The state
// then looks as if no probe had succeeded for longer than any WatchForProbeFailure. An unknown
// extension becomes known, and is not connected. Sources receive one event per series of failures.
// PassProbe and Connect end a series.
func (f *Cache) FailProbe(key client.ObjectKey) {
	f.mu.Lock()
	e := f.getOrAddLocked(key)
	now := time.Now()
	if e.state.Health.ConsecutiveFailures == 0 {
		e.state.Health.LastProbeSuccessTime = now.Add(-longAgo)
	}
	e.state.Health.LastProbeTime, e.state.Health.LastError = now, ErrProbe
	e.state.Health.ConsecutiveFailures++
	e.setHealthyLocked()
	f.mu.Unlock()
	f.states.Changed(key)
	f.hub.Look()
}

// PassProbe lets a probe of an extension succeed. An unknown extension becomes known, and is not
// connected.
func (f *Cache) PassProbe(key client.ObjectKey) {
	f.mu.Lock()
	e := f.getOrAddLocked(key)
	e.state.Health = succeededAt(time.Now())
	e.setHealthyLocked()
	f.mu.Unlock()
	f.states.Changed(key)
	f.hub.Look()
}

// succeededAt returns the health after a probe that succeeded.
func succeededAt(now time.Time) clustercache.HealthCheckingState {
	return clustercache.HealthCheckingState{LastProbeTime: now, LastProbeSuccessTime: now}
}

// Watches returns the watches of an extension, sorted. Watches whose names were given to
// NewFakeCache have no kind.
func (f *Cache) Watches(key client.ObjectKey) []clustercache.WatchState {
	state, _ := f.GetConnectionState(context.Background(), key)
	return state.Watches
}

// SetExtension sets the object that map functions receive, and that For compares with, for the
// extension with the name of object. The default is an unstructured ClusterExtension. An unknown
// extension becomes known. SetExtension sends no event.
func (f *Cache) SetExtension(object client.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.getOrAddLocked(client.ObjectKeyFromObject(object))
	e.object, e.objectSet, e.stale = object.DeepCopyObject().(client.Object), true, false
	e.state.UID, e.state.Created = object.GetUID(), object.GetCreationTimestamp().Time
	f.states.Changed(client.ObjectKeyFromObject(object))
}

// SetIdentity sets the identity of the extension's connection, from the next connect on: call
// SetIdentity before Connect, or connect again. The default is ServiceAccount fake:<name>. An
// unknown extension becomes known.
func (f *Cache) SetIdentity(key client.ObjectKey, identity clustercache.Identity) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.getOrAddLocked(key).identity = identity
	f.states.Changed(key) // the extension may be new
}

// Close ends every connection and watch, and returns after their goroutines have ended. Tests that
// check for leaked goroutines must call Close. If a handler hangs, Close hangs too.
func (f *Cache) Close() {
	f.mu.Lock()
	keys := slices.Collect(maps.Keys(f.byKey))
	f.mu.Unlock()
	for _, key := range keys {
		f.Disconnect(key, clustercache.ReasonDeleted)
	}
	f.mu.Lock()
	conns := f.conns
	f.conns = nil
	f.mu.Unlock()
	for _, conn := range conns {
		conn.running.Wait()
	}
}

// GetClient implements clustercache.ClusterCache. The result is the client of the test, bound to
// the connection.
func (f *Cache) GetClient(_ context.Context, extension client.ObjectKey) (client.Client, error) {
	e, err := f.connected(extension)
	if err != nil {
		return nil, err
	}
	return e.conn.client(), nil
}

// GetReader implements clustercache.ClusterCache. The result is that of GetClient.
func (f *Cache) GetReader(ctx context.Context, extension client.ObjectKey) (client.Reader, error) {
	return f.GetClient(ctx, extension)
}

// GetUncachedClient implements clustercache.ClusterCache. The result is that of GetClient.
func (f *Cache) GetUncachedClient(ctx context.Context, extension client.ObjectKey) (client.Client, error) {
	return f.GetClient(ctx, extension)
}

// GetRESTConfig implements clustercache.ClusterCache. Every request with the config fails, because
// there is no API server.
func (f *Cache) GetRESTConfig(_ context.Context, extension client.ObjectKey) (*rest.Config, error) {
	e, err := f.connected(extension)
	if err != nil {
		return nil, err
	}
	return e.conn.config(), nil
}

// GetCluster implements clustercache.ClusterCache. The cluster uses the client of the test.
func (f *Cache) GetCluster(_ context.Context, extension client.ObjectKey) (cluster.Cluster, error) {
	e, err := f.connected(extension)
	if err != nil {
		return nil, err
	}
	return e.conn.whole, nil
}

// Watch implements clustercache.ClusterCache.
func (f *Cache) Watch(ctx context.Context, extension client.ObjectKey, watcher clustercache.Watcher) error {
	e, err := f.connected(extension)
	if err != nil || slices.Contains(e.presets, watcher.Name()) {
		return err
	}
	return e.registry.Watch(ctx, e.conn, watcher)
}

// WatchContent implements clustercache.ClusterCache.
func (f *Cache) WatchContent(ctx context.Context, extension client.ObjectKey, content clustercache.ContentWatch) error {
	e, err := f.connected(extension)
	if err != nil || slices.Contains(e.presets, content.Name()) {
		return err
	}
	return e.registry.WatchContent(ctx, e.conn, content)
}

// Unwatch implements clustercache.ClusterCache.
func (f *Cache) Unwatch(ctx context.Context, extension client.ObjectKey, name string, dependents ...types.UID) {
	f.mu.Lock()
	var registry *watches.Registry
	if e := f.byKey[extension]; e != nil {
		registry = e.registry
		if len(dependents) == 0 {
			e.presets = slices.DeleteFunc(slices.Clone(e.presets), func(preset string) bool { return preset == name })
		}
	}
	f.mu.Unlock()
	if registry != nil {
		registry.Unwatch(ctx, name, dependents...)
	}
}

// GetHealthCheckingState implements clustercache.ClusterCache.
func (f *Cache) GetHealthCheckingState(ctx context.Context,
	extension client.ObjectKey) clustercache.HealthCheckingState {
	state, _ := f.GetConnectionState(ctx, extension)
	return state.Health
}

// GetConnectionState implements clustercache.ClusterCache.
func (f *Cache) GetConnectionState(_ context.Context, extension client.ObjectKey) (clustercache.ConnectionState, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, found := f.byKey[extension]
	if !found {
		return clustercache.ConnectionState{}, false
	}
	return e.snapshot(), true
}

// GetNotOwned implements clustercache.ClusterCache: every extension of a fake is this replica's.
func (*Cache) GetNotOwned(context.Context, client.ObjectKey) (clustercache.NotOwnedExtension, bool) {
	return clustercache.NotOwnedExtension{}, false
}

// ListConnectionStates implements clustercache.ClusterCache.
func (f *Cache) ListConnectionStates(_ context.Context) (states []clustercache.ConnectionState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.byKey {
		states = append(states, e.snapshot())
	}
	slices.SortFunc(states, func(x, y clustercache.ConnectionState) int {
		return cmp.Or(cmp.Compare(x.Extension.Namespace, y.Extension.Namespace),
			cmp.Compare(x.Extension.Name, y.Extension.Name))
	})
	return states
}

// SubscribeStates implements clustercache.ClusterCache.
func (f *Cache) SubscribeStates(ctx context.Context, subscriber func(extensions []client.ObjectKey)) {
	f.states.Subscribe(ctx, nil, func() []client.ObjectKey {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.Collect(maps.Keys(f.byKey))
	}, subscriber)
}

// GetExtensionSource implements clustercache.ClusterCache.
func (f *Cache) GetExtensionSource(controllerName string, mapFunc handler.MapFunc,
	opts ...clustercache.GetExtensionSourceOption) source.Source {
	var options clustercache.GetExtensionSourceOptions
	for _, opt := range opts {
		opt.ApplyToGetExtensionSource(&options)
	}
	return extensionsource.New(&f.hub, extensionLister{&f.extensions},
		extensionsource.Options{ControllerName: controllerName, ProbeFailure: options.ProbeFailure},
		handler.TypedMapFunc[client.Object, ctrl.Request](mapFunc))
}
