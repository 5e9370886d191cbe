package fake

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/extensionsource"
	"github.com/latchkey-dev/latchkey/internal/watches"
)

// Target is the host that connections of a Cache name.
const Target = "https://fake.invalid"

// ErrProbe is the LastError of an extension after FailProbe.
var ErrProbe = errors.New("the fake's probe fails")

// longAgo is further back than any WatchForProbeFailure.
const longAgo = 10 * 365 * 24 * time.Hour

// Cache is a fake clustercache.ClusterCache. Its methods may be called from any goroutine.
type Cache struct {
	hub extensionsource.Hub

	mu         sync.Mutex
	extensions map[client.ObjectKey]*extension // guarded by mu
	conns      []*connection                   // guarded by mu; all there were, for Close
}

var _ clustercache.ClusterCache = (*Cache)(nil)

// extension is one extension. All of it is guarded by the cache's mu.
type extension struct {
	object   client.Object
	state    clustercache.ConnectionState // without Watches and Identity
	identity clustercache.Identity        // of the next connect
	conn     *connection                  // nil while not connected
	since    time.Time                    // not connected, or connected
	presets  []string                     // watches that are there already; replaced, never changed
	registry *watches.Registry            // nil before the first connect, whose client has the scheme
}

// NewFakeCache returns a Cache that knows one extension, connected with c. watchNames are names of
// watches that are there already: Watch with such a name succeeds and does nothing. If c is nil the
// extension is not connected, and errors say so.
func NewFakeCache(c client.Client, extension client.ObjectKey, watchNames ...string) *Cache {
	cache := NewFakeEmptyCache()
	cache.connect(extension, c, watchNames)
	return cache
}

// NewFakeEmptyCache returns a Cache that knows no extension.
func NewFakeEmptyCache() *Cache {
	return &Cache{extensions: map[client.ObjectKey]*extension{}}
}

// Connect connects an extension with c, makes it known if it was not, and tells the sources. If it
// was connected, that connection ends first: its handles are dead.
func (f *Cache) Connect(key client.ObjectKey, c client.Client) { f.connect(key, c, nil) }

func (f *Cache) connect(key client.ObjectKey, c client.Client, presets []string) {
	if c == nil {
		f.disconnect(key, clustercache.NotStarted, "the fake was given a nil client for it; NewFakeEmptyCache needs none")
		return
	}
	f.mu.Lock()
	e := f.knownLocked(key)
	e.presets = append(slices.Clone(e.presets), presets...)
	if e.registry == nil {
		e.registry = &watches.Registry{Extension: key, Scheme: c.Scheme(), Logger: logr.Discard()}
	}
	release := func() {}
	if e.conn != nil {
		release = f.endLocked(e, clustercache.IdentityMismatch, "the fake connected it anew")
	}
	e.state.Generation++
	e.conn = newConnection(c, e.state.Generation, e.identity)
	f.conns = append(f.conns, e.conn)
	now := time.Now()
	e.state.Phase, e.state.Reason, e.state.Message, e.state.Since, e.since = clustercache.Connected, "", "", now, now
	e.state.Target = Target
	e.state.Health = e.state.Health.After(now, nil)
	e.registry.Connected(e.conn)
	object := e.object
	f.mu.Unlock()
	release()
	f.hub.Changed(object)
}

// Disconnect ends the connection of an extension, makes it known if it was not, and tells the
// sources. After Deleted and Filtered it is not known any more, and its watches have ended.
func (f *Cache) Disconnect(key client.ObjectKey, reason clustercache.Reason) {
	f.disconnect(key, reason, "the fake disconnected it")
}

func (f *Cache) disconnect(key client.ObjectKey, reason clustercache.Reason, message string) {
	f.mu.Lock()
	e := f.knownLocked(key)
	release := f.endLocked(e, reason, message)
	object, registry := e.object, e.registry
	gone := reason == clustercache.Deleted || reason == clustercache.Filtered
	if gone {
		delete(f.extensions, key)
	}
	f.mu.Unlock()
	release()
	if gone && registry != nil {
		registry.End()
	}
	f.hub.Changed(object)
}

// endLocked ends the connection of an extension, if there is one. Call what it returns without mu.
func (f *Cache) endLocked(e *extension, reason clustercache.Reason, message string) (release func()) {
	if e.conn != nil || e.state.Reason == clustercache.NotStarted {
		e.since = time.Now()
	}
	e.state.Phase, e.state.Reason, e.state.Since = clustercache.Disconnected, reason, e.since
	e.state.Message = message
	conn, registry := e.conn, e.registry
	e.conn = nil
	if conn == nil {
		return func() {}
	}
	conn.close(e.notConnected())
	return func() { registry.Disconnected(conn) }
}

// FailProbe fails a probe of an extension; if it is connected it stays so. It is as if no probe had
// succeeded for longer than any WatchForProbeFailure. An unknown extension becomes known, and not
// connected. Sources are told once per episode, which PassProbe and Connect end.
func (f *Cache) FailProbe(key client.ObjectKey) {
	f.mu.Lock()
	e := f.knownLocked(key)
	now := time.Now()
	if e.state.Health.ConsecutiveFailures == 0 {
		e.state.Health.LastProbeSuccessTime = now.Add(-longAgo)
	}
	e.state.Health = e.state.Health.After(now, ErrProbe)
	f.mu.Unlock()
	f.hub.Look()
}

// PassProbe lets a probe of an extension succeed. An unknown extension becomes known, and not
// connected.
func (f *Cache) PassProbe(key client.ObjectKey) {
	f.mu.Lock()
	e := f.knownLocked(key)
	e.state.Health = e.state.Health.After(time.Now(), nil)
	f.mu.Unlock()
	f.hub.Look()
}

// Watches returns what is watched for an extension, sorted; those that NewFakeCache was given have
// no kind.
func (f *Cache) Watches(key client.ObjectKey) []clustercache.WatchState {
	state, _ := f.GetConnectionState(context.Background(), key)
	return state.Watches
}

// SetExtension says what object map functions get for the extension of its name. Before, and
// without it, that is an unstructured ClusterExtension. It tells nobody. An unknown extension
// becomes known.
func (f *Cache) SetExtension(object client.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.knownLocked(client.ObjectKeyFromObject(object))
	e.object = object.DeepCopyObject().(client.Object)
	e.state.UID = object.GetUID()
}

// SetIdentity says as whom the extension is connected, from its next connect on: call it before
// Connect, or connect again. The default is ServiceAccount fake:<name>. An unknown extension
// becomes known.
func (f *Cache) SetIdentity(key client.ObjectKey, identity clustercache.Identity) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.knownLocked(key).identity = identity
}

// Close ends every connection and watch, and returns when nothing of them runs any more. Tests that
// look for goroutines need it. A handler that hangs makes it hang.
func (f *Cache) Close() {
	f.mu.Lock()
	keys := slices.Collect(maps.Keys(f.extensions))
	f.mu.Unlock()
	for _, key := range keys {
		f.Disconnect(key, clustercache.Deleted)
	}
	f.mu.Lock()
	conns := f.conns
	f.conns = nil
	f.mu.Unlock()
	for _, conn := range conns {
		conn.running.Wait()
	}
}

// knownLocked returns the extension, made known if need be.
func (f *Cache) knownLocked(key client.ObjectKey) *extension {
	if e, known := f.extensions[key]; known {
		return e
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	object.SetNamespace(key.Namespace)
	object.SetName(key.Name)
	object.SetUID(types.UID("fake-" + key.Name))
	now := time.Now()
	e := &extension{object: object, since: now, state: clustercache.ConnectionState{
		Extension: key, UID: object.GetUID(), Phase: clustercache.Disconnected, Reason: clustercache.NotStarted, Since: now,
	},
		identity: clustercache.Identity{Username: "system:serviceaccount:fake:" + key.Name,
			UID: types.UID("fake-" + key.Name)}}
	f.extensions[key] = e
	return e
}

func (e *extension) notConnected() *clustercache.NotConnectedError {
	err := &clustercache.NotConnectedError{Extension: e.state.Extension, Reason: e.state.Reason, Since: e.since}
	if e.state.Message != "" {
		err.Cause = errors.New(e.state.Message)
	}
	return err
}

// connected returns a copy of an extension that is connected, or why it is not.
func (f *Cache) connected(key client.ObjectKey) (extension, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, known := f.extensions[key]
	switch {
	case !known:
		return extension{},
			&clustercache.NotConnectedError{Extension: key, Reason: clustercache.NotStarted,
				Cause: errors.New("the fake does not know it")}
	case e.conn == nil:
		return extension{}, e.notConnected()
	}
	return *e, nil
}

// GetClient implements clustercache.ClusterCache: the client of the test, bound to the connection.
func (f *Cache) GetClient(_ context.Context, extension client.ObjectKey) (client.Client, error) {
	e, err := f.connected(extension)
	if err != nil {
		return nil, err
	}
	return e.conn.client(), nil
}

// GetReader implements clustercache.ClusterCache: the client of the test.
func (f *Cache) GetReader(ctx context.Context, extension client.ObjectKey) (client.Reader, error) {
	return f.GetClient(ctx, extension)
}

// GetUncachedClient implements clustercache.ClusterCache: the client of the test.
func (f *Cache) GetUncachedClient(ctx context.Context, extension client.ObjectKey) (client.Client, error) {
	return f.GetClient(ctx, extension)
}

// GetRESTConfig implements clustercache.ClusterCache: a config that reaches nobody.
func (f *Cache) GetRESTConfig(_ context.Context, extension client.ObjectKey) (*rest.Config, error) {
	e, err := f.connected(extension)
	if err != nil {
		return nil, err
	}
	return e.conn.config(), nil
}

// GetCluster implements clustercache.ClusterCache around the client of the test.
func (f *Cache) GetCluster(_ context.Context, extension client.ObjectKey) (cluster.Cluster, error) {
	e, err := f.connected(extension)
	if err != nil {
		return nil, err
	}
	return &fakeCluster{conn: e.conn}, nil
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
func (f *Cache) Unwatch(ctx context.Context, extension client.ObjectKey, name string, dependents ...types.UID) error {
	f.mu.Lock()
	var registry *watches.Registry
	if e := f.extensions[extension]; e != nil {
		registry = e.registry
		if len(dependents) == 0 {
			e.presets = slices.DeleteFunc(slices.Clone(e.presets), func(preset string) bool { return preset == name })
		}
	}
	f.mu.Unlock()
	if registry != nil {
		registry.Unwatch(ctx, name, dependents...)
	}
	return nil
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
	e, known := f.extensions[extension]
	if !known {
		return clustercache.ConnectionState{}, false
	}
	return e.snapshot(), true
}

// snapshot is called under the cache's mu.
func (e *extension) snapshot() clustercache.ConnectionState {
	state := e.state
	if e.conn != nil {
		state.Identity = e.conn.identity
		state.Identity.Groups = slices.Clone(state.Identity.Groups)
	}
	for _, name := range e.presets {
		state.Watches = append(state.Watches, clustercache.WatchState{Name: name, Dependents: []types.UID{""}})
	}
	if e.registry != nil {
		state.Watches = append(state.Watches, e.registry.States()...)
	}
	slices.SortStableFunc(state.Watches, func(x, y clustercache.WatchState) int { return cmp.Compare(x.Name, y.Name) })
	return state
}

// ListConnectionStates implements clustercache.ClusterCache.
func (f *Cache) ListConnectionStates(context.Context) (states []clustercache.ConnectionState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.extensions {
		states = append(states, e.snapshot())
	}
	slices.SortFunc(states, func(x, y clustercache.ConnectionState) int {
		return cmp.Or(cmp.Compare(x.Extension.Namespace, y.Extension.Namespace),
			cmp.Compare(x.Extension.Name, y.Extension.Name))
	})
	return states
}

// GetExtensionSource implements clustercache.ClusterCache.
func (f *Cache) GetExtensionSource(controllerName string, mapFunc handler.MapFunc,
	opts ...clustercache.GetExtensionSourceOption) source.Source {
	var options clustercache.GetExtensionSourceOptions
	for _, opt := range opts {
		opt.ApplyToGetExtensionSource(&options)
	}
	return extensionsource.New(&f.hub, known{f},
		extensionsource.Options{ControllerName: controllerName, ProbeFailure: options.ProbeFailure},
		handler.TypedMapFunc[client.Object, ctrl.Request](mapFunc))
}

// known is what there is to tell of a Cache.
type known struct{ *Cache }

func (k known) Objects() (objects []client.Object) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.extensions {
		objects = append(objects, e.object)
	}
	return objects
}

func (k known) Unhealthy() (list []extensionsource.Unhealthy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.extensions {
		if e.conn != nil && e.state.Health.ConsecutiveFailures == 0 {
			continue
		}
		since := e.state.Health.LastProbeSuccessTime
		if since.IsZero() {
			since = e.since
		}
		list = append(list, extensionsource.Unhealthy{Object: e.object, Since: since})
	}
	return list
}
