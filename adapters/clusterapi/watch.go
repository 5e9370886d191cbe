package clusterapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	latchkey "github.com/latchkey-dev/latchkey/clustercache"
)

// Watch calls the watcher's Watch with the connection's cache, once for each name and connection. A
// reconnect forgets the names: call Watch again in each Reconcile. The watch ends with the
// connection, and survives the loss of a permission or of a kind.
func (c *clusterCache) Watch(ctx context.Context, cluster client.ObjectKey, watcher clustercache.Watcher) error {
	connected, err := c.watches.of(ctx, c.connections, cluster)
	if err != nil {
		return &notConnectedError{fmt.Sprintf("error creating watch %s for %T", watcher.Name(), watcher.Object()), err}
	}
	return connected.add(watcher)
}

// watches are the watches of the connections. The zero value is ready to use.
type watches struct {
	mu        sync.Mutex
	connected map[client.ObjectKey]*connection // guarded by mu; at most one, the latest, of each cluster

	preset map[client.ObjectKey]sets.Set[string] // names that a fake's connections have from the beginning
}

// connection has the names of a connection's watches.
type connection struct {
	whole  cluster.Cluster
	adding singleflight.Group // by name

	mu    sync.Mutex
	names sets.Set[string] // guarded by mu
}

// of returns the connection of a cluster. Connections are looked up under the lock, so that one
// that has ended does not replace the one that followed.
func (w *watches) of(ctx context.Context, connections latchkey.ClusterCache,
	key client.ObjectKey) (*connection, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	whole, err := connections.GetCluster(ctx, key)
	if err != nil {
		delete(w.connected, key)
		return nil, err
	}
	if known := w.connected[key]; known != nil && known.whole == whole {
		return known, nil
	}
	created := &connection{whole: whole, names: w.preset[key].Clone()}
	if w.connected == nil {
		w.connected = map[client.ObjectKey]*connection{}
	}
	w.connected[key] = created
	return created, nil
}

// forget returns a function that drops what is known about connections that have ended.
func (w *watches) forget(connections latchkey.ClusterCache) func(changed []client.ObjectKey) {
	return func(changed []client.ObjectKey) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, key := range changed {
			known := w.connected[key]
			if known == nil {
				continue
			}
			if whole, err := connections.GetCluster(context.Background(), key); err != nil || whole != known.whole {
				delete(w.connected, key)
			}
		}
	}
}

// add calls the watcher's Watch, unless one of that name has succeeded. Callers with the same name
// wait for each other, and no others.
func (c *connection) add(watcher clustercache.Watcher) error {
	name := watcher.Name()
	if name == "" {
		return errors.New("watcher.Name() cannot be empty")
	}
	_, err, _ := c.adding.Do(name, func() (any, error) {
		if c.has(name) {
			return nil, nil
		}
		if err := watcher.Watch(watchedCache{c.whole.GetCache()}); err != nil {
			return nil, errors.Wrapf(err, "error creating watch %s for %T", name, watcher.Object())
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.names.Insert(name)
		return nil, nil
	})
	return err
}

func (c *connection) has(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names.Has(name)
}

// watchedCache is the cache that watchers get. A source of controller-runtime looks for its
// informer every ten seconds until it gets one, and waits for it to sync, for as long as its
// controller runs. With this cache the source ends when the connection does.
type watchedCache struct{ cache.Cache }

// GetInformer returns an informer that has stopped if the connection has ended. So does
// GetInformerForKind.
func (c watchedCache) GetInformer(ctx context.Context, object client.Object,
	opts ...cache.InformerGetOption) (cache.Informer, error) {
	return watched(c.Cache.GetInformer(ctx, object, opts...))
}

func (c watchedCache) GetInformerForKind(ctx context.Context, gvk schema.GroupVersionKind,
	opts ...cache.InformerGetOption) (cache.Informer, error) {
	return watched(c.Cache.GetInformerForKind(ctx, gvk, opts...))
}

// watched returns the informer as watchers get it.
func watched(informer cache.Informer, err error) (cache.Informer, error) {
	switch {
	case errors.Is(err, latchkey.ErrNotConnected):
		return stoppedInformer{}, nil
	case err != nil:
		return nil, err
	}
	return watchedInformer{informer}, nil
}

// watchedInformer is an informer whose registrations are synced when the informer has stopped.
type watchedInformer struct{ cache.Informer }

func (i watchedInformer) AddEventHandler(
	handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.registered(i.Informer.AddEventHandler(handler))
}

func (i watchedInformer) AddEventHandlerWithResyncPeriod(handler toolscache.ResourceEventHandler,
	period time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.registered(i.Informer.AddEventHandlerWithResyncPeriod(handler, period))
}

func (i watchedInformer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler,
	options toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.registered(i.Informer.AddEventHandlerWithOptions(handler, options))
}

// registered returns the registration as watchers get it.
func (i watchedInformer) registered(registration toolscache.ResourceEventHandlerRegistration,
	err error) (toolscache.ResourceEventHandlerRegistration, error) {
	if errors.Is(err, latchkey.ErrNotConnected) {
		return stoppedInformer{}, nil
	}
	if err != nil {
		return nil, err
	}
	return watchedRegistration{registration, i.Informer}, nil
}

func (i watchedInformer) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	switch r := handle.(type) {
	case stoppedInformer:
		return nil
	case watchedRegistration:
		handle = r.ResourceEventHandlerRegistration
	}
	return i.Informer.RemoveEventHandler(handle)
}

// watchedRegistration is a registration that has nothing to wait for when its informer has stopped.
type watchedRegistration struct {
	toolscache.ResourceEventHandlerRegistration
	informer cache.Informer
}

func (r watchedRegistration) HasSynced() bool {
	return r.ResourceEventHandlerRegistration.HasSynced() || r.informer.IsStopped()
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// stoppedInformer is an informer that has stopped, and the registration of a handler with it.
type stoppedInformer struct{}

func (stoppedInformer) AddEventHandler(
	toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return stoppedInformer{}, nil
}

func (stoppedInformer) AddEventHandlerWithResyncPeriod(toolscache.ResourceEventHandler,
	time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return stoppedInformer{}, nil
}

func (stoppedInformer) AddEventHandlerWithOptions(toolscache.ResourceEventHandler,
	toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return stoppedInformer{}, nil
}

func (stoppedInformer) RemoveEventHandler(toolscache.ResourceEventHandlerRegistration) error {
	return nil
}
func (stoppedInformer) AddIndexers(toolscache.Indexers) error    { return nil }
func (stoppedInformer) HasSynced() bool                          { return true }
func (stoppedInformer) HasSyncedChecker() toolscache.DoneChecker { return stoppedInformer{} }
func (stoppedInformer) IsStopped() bool                          { return true }
func (stoppedInformer) Name() string                             { return "connection that has ended" }
func (stoppedInformer) Done() <-chan struct{}                    { return closed }
