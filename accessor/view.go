package accessor

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/permissioncheck"
)

// Binding is what an object, as a caller read it, says about its connection.
type Binding = connection.Binding

// View gives access to one extension's connection. Getters take one map load and one atomic load; a
// call that is stale also takes the accessor's lock, for the text of its error. Only Watch,
// WatchContent and Unwatch may block, until their context is done; the others take a context
// because their callers do.
type View struct {
	registry *registry
	key      client.ObjectKey
	binding  *Binding // the connection must be for it; nil for any
}

// At returns a view of the extension's connection.
func (r *registry) At(key client.ObjectKey) View { return View{registry: r, key: key} }

// For returns a view of the extension's connection, as long as it was made for binding.
func (r *registry) For(key client.ObjectKey, binding *Binding) View {
	return View{registry: r, key: key, binding: binding}
}

// Key returns the key of the extension.
func (v View) Key() client.ObjectKey { return v.key }

// published returns the accessor and its snapshot, or a *NotConnectedError, or an ErrMistake.
func (v View) published() (*identityAccessor, *snapshot, error) {
	if v.binding != nil && v.binding.Mistake != nil {
		return nil, nil, v.binding.Mistake
	}
	a, err := v.registry.find(v.key)
	if err != nil {
		return nil, nil, err
	}
	published := a.published.Load()
	if published.conn == nil {
		return nil, nil, published.err
	}
	if v.binding != nil {
		if err := published.conn.MadeFor(*v.binding); err != nil {
			reason, cause := a.stale(err)
			return nil, nil, &connstate.NotConnectedError{Extension: v.key, Reason: reason, Since: published.since, Err: cause}
		}
	}
	return a, published, nil
}

// isOf reports whether the accessor is that of the object of the view.
func (v View) isOf(a *identityAccessor) bool {
	return v.binding == nil || v.binding.UID == a.uid()
}

func (v View) clients() (*connection.Clients, error) {
	_, published, err := v.published()
	if err != nil {
		return nil, err
	}
	return published.clients()
}

// GetClient returns the client that reads from the cache, or a *NotConnectedError.
func (v View) GetClient(context.Context) (client.Client, error) {
	clients, err := v.clients()
	if err != nil {
		return nil, err
	}
	return clients.Cached, nil
}

// GetReader returns the cached reader, or a *NotConnectedError.
func (v View) GetReader(context.Context) (client.Reader, error) {
	clients, err := v.clients()
	if err != nil {
		return nil, err
	}
	return clients.Cache, nil
}

// GetUncachedClient returns the client that reads from the API server, or a *NotConnectedError.
func (v View) GetUncachedClient(context.Context) (client.Client, error) {
	clients, err := v.clients()
	if err != nil {
		return nil, err
	}
	return clients.Uncached, nil
}

// GetRESTConfig returns a copy of the connection's config, or a *NotConnectedError.
func (v View) GetRESTConfig(context.Context) (*rest.Config, error) {
	_, published, err := v.published()
	if err != nil {
		return nil, err
	}
	return published.conn.RESTConfig(), nil
}

// GetCluster returns the connection as a cluster.Cluster, or a *NotConnectedError.
func (v View) GetCluster(context.Context) (cluster.Cluster, error) {
	_, published, err := v.published()
	if err != nil {
		return nil, err
	}
	return published.conn.Cluster()
}

// CheckPermissions asks the API server which permissions the identity lacks. source is that of its
// credential.
func (v View) CheckPermissions(ctx context.Context, check permissioncheck.Check) (answer *permissioncheck.Answer,
	source string, err error) {
	_, published, err := v.published()
	if err != nil {
		return nil, "", err
	}
	checker, err := published.conn.Checker()
	if err != nil {
		return nil, "", err
	}
	if answer, err = checker.Run(ctx, check); err != nil {
		return nil, "", err
	}
	published.conn.NoteReviews(answer)
	return answer, published.conn.Resolution().Source, nil
}

// Watch registers a watch; see clustercache.ClusterCache.
func (v View) Watch(ctx context.Context, watcher watches.Watcher) error {
	a, published, err := v.published()
	if err != nil {
		return err
	}
	return a.watches.Watch(ctx, published.conn, watcher)
}

// WatchContent registers the watches of a content; see clustercache.ClusterCache.
func (v View) WatchContent(ctx context.Context, content watches.ContentWatch) error {
	a, published, err := v.published()
	if err != nil {
		return err
	}
	return a.watches.WatchContent(ctx, published.conn, content)
}

// Unwatch ends a watch, or removes dependents from the watch. Unwatch ignores watches and
// dependents that are not registered, and those of another object than the binding's.
func (v View) Unwatch(ctx context.Context, name string, dependents ...types.UID) {
	a, err := v.registry.find(v.key)
	if err == nil && v.isOf(a) {
		a.watches.Unwatch(ctx, name, dependents...)
	}
}

// State returns a snapshot of the extension's connection. It returns false if the extension is
// unknown, or if the connection is for another object or reference than the binding's.
func (v View) State() (State, bool) {
	a, err := v.registry.find(v.key)
	if err != nil || !v.isOf(a) {
		return State{}, false
	}
	if conn := a.published.Load().conn; v.binding != nil && conn != nil && conn.MadeFor(*v.binding) != nil {
		return State{}, false
	}
	return a.state(), true
}
