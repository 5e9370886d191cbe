package accessor

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// registry holds the accessors of all extensions by key. Its methods may be called from any
// goroutine. Only Watch, WatchContent and Unwatch may block, until their context is done.
type registry struct {
	byKey   sync.Map // client.ObjectKey to *identityAccessor
	unknown atomic.Pointer[unknownExtensions]
}

// unknownExtensions is the reason why extensions are unknown, where a specific reason exists.
type unknownExtensions struct {
	reason connstate.Reason
	cause  error
}

func (r *registry) each(f func(*identityAccessor)) {
	r.byKey.Range(func(_, value any) bool {
		f(value.(*identityAccessor))
		return true
	})
}

// MayNotRead records why the host operator may not read the extensions; nil if it may. While a
// cause is recorded, unknown extensions have the reason OperatorForbidden.
func (r *registry) MayNotRead(cause error) {
	if cause == nil {
		r.unknown.Store(nil)
		return
	}
	r.unknown.Store(&unknownExtensions{reason: connstate.ReasonOperatorForbidden, cause: cause})
}

func (r *registry) find(key client.ObjectKey) (*identityAccessor, error) {
	found, ok := r.byKey.Load(key)
	if !ok {
		if u := r.unknown.Load(); u != nil {
			return nil, &connstate.NotConnectedError{Extension: key, Reason: u.reason, Err: u.cause}
		}
		return nil, &connstate.NotConnectedError{Extension: key, Reason: connstate.ReasonNotStarted, Err: errUnknown}
	}
	return found.(*identityAccessor), nil
}

// connected is the path that getters take: one map load and one atomic load.
func (r *registry) connected(key client.ObjectKey) (*connection.Connection, error) {
	_, conn, err := r.connectedAccessor(key)
	return conn, err
}

func (r *registry) clients(key client.ObjectKey) (*connection.Clients, error) {
	a, err := r.find(key)
	if err != nil {
		return nil, err
	}
	return a.published.Load().clients()
}

// GetClient returns the client that reads from the cache, or a *NotConnectedError.
func (r *registry) GetClient(key client.ObjectKey) (client.Client, error) {
	h, err := r.clients(key)
	if err != nil {
		return nil, err
	}
	return h.Cached, nil
}

// GetReader returns the cached reader, or a *NotConnectedError.
func (r *registry) GetReader(key client.ObjectKey) (client.Reader, error) {
	h, err := r.clients(key)
	if err != nil {
		return nil, err
	}
	return h.Cache, nil
}

// GetUncachedClient returns the client that reads from the API server, or a *NotConnectedError.
func (r *registry) GetUncachedClient(key client.ObjectKey) (client.Client, error) {
	h, err := r.clients(key)
	if err != nil {
		return nil, err
	}
	return h.Uncached, nil
}

// GetRESTConfig returns a copy of the connection's config, or a *NotConnectedError.
func (r *registry) GetRESTConfig(key client.ObjectKey) (*rest.Config, error) {
	conn, err := r.connected(key)
	if err != nil {
		return nil, err
	}
	return conn.RESTConfig(), nil
}

// GetCluster returns the connection as a cluster.Cluster, or a *NotConnectedError.
func (r *registry) GetCluster(key client.ObjectKey) (cluster.Cluster, error) {
	conn, err := r.connected(key)
	if err != nil {
		return nil, err
	}
	return conn.Cluster()
}

// Watch registers a watch; see clustercache.ClusterCache.
func (r *registry) Watch(ctx context.Context, key client.ObjectKey, watcher Watcher) error {
	a, conn, err := r.connectedAccessor(key)
	if err != nil {
		return err
	}
	return a.watches.Watch(ctx, conn, watcher)
}

// WatchContent registers the watches of a content; see clustercache.ClusterCache.
func (r *registry) WatchContent(ctx context.Context, key client.ObjectKey, content ContentWatch) error {
	a, conn, err := r.connectedAccessor(key)
	if err != nil {
		return err
	}
	return a.watches.WatchContent(ctx, conn, content)
}

func (r *registry) connectedAccessor(key client.ObjectKey) (*identityAccessor, *connection.Connection, error) {
	a, err := r.find(key)
	if err != nil {
		return nil, nil, err
	}
	published := a.published.Load()
	if published.conn == nil {
		return nil, nil, published.err
	}
	return a, published.conn, nil
}

// Unwatch ends a watch, or removes dependents from the watch. Unwatch ignores watches and
// dependents that are not registered.
func (r *registry) Unwatch(ctx context.Context, key client.ObjectKey, name string, dependents ...types.UID) {
	if a, err := r.find(key); err == nil {
		a.watches.Unwatch(ctx, name, dependents...)
	}
}

// State returns a snapshot of the extension's connection; false if the extension is unknown.
func (r *registry) State(key client.ObjectKey) (ConnectionState, bool) {
	a, err := r.find(key)
	if err != nil {
		return ConnectionState{}, false
	}
	return a.state(), true
}

// States returns a snapshot of all connections, sorted by key.
func (r *registry) States() []ConnectionState {
	var states []ConnectionState
	r.each(func(a *identityAccessor) { states = append(states, a.state()) })
	slices.SortFunc(states, func(x, y ConnectionState) int {
		return strings.Compare(x.Extension.Namespace+"\x00"+x.Extension.Name, y.Extension.Namespace+"\x00"+y.Extension.Name)
	})
	return states
}

// Object returns the extension as last reconciled, nil if the extension is unknown. The object is
// shared: do not change it.
func (r *registry) Object(key client.ObjectKey) client.Object {
	a, err := r.find(key)
	if err != nil {
		return nil
	}
	return a.lastObject()
}

// Objects returns every known extension as last reconciled. The objects are shared: do not change
// them.
func (r *registry) Objects() []client.Object {
	var objects []client.Object
	r.each(func(a *identityAccessor) {
		if object := a.lastObject(); object != nil {
			objects = append(objects, object)
		}
	})
	return objects
}

// EachUnhealthy calls f for every known extension that is not connected, or whose last probe
// failed. The argument since is the time of the last success, or else the time at which the
// extension became known.
func (r *registry) EachUnhealthy(f func(object client.Object, since time.Time)) {
	r.each(func(a *identityAccessor) {
		if object, since, unhealthy := a.unhealthy(); unhealthy {
			f(object, since)
		}
	})
}
