package fake

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// connection is the connection that Connect creates.
type connection struct {
	testClient client.Client // the client of the test
	epoch      int64
	identity   clustercache.Identity
	access     *access
	changed    func() // called after a change of scopes
	life       context.Context
	end        context.CancelCauseFunc
	whole      *fakeCluster // the connection as GetCluster returns it

	mu        sync.Mutex         // locked to end life, and to add to running
	running   sync.WaitGroup     // Add is called only before life ends
	informers map[*informer]bool // guarded by mu; not released yet
}

var _ watches.Connection = (*connection)(nil)

func newConnection(c client.Client, epoch int64, identity clustercache.Identity, access *access,
	changed func()) *connection {
	conn := &connection{
		testClient: c,
		epoch:      epoch,
		identity:   identity,
		access:     access,
		changed:    changed,
		informers:  map[*informer]bool{},
	}
	conn.life, conn.end = context.WithCancelCause(context.Background())
	conn.whole = &fakeCluster{conn: conn}
	return conn
}

func (c *connection) Life() context.Context        { return c.life }
func (c *connection) Epoch() int64                 { return c.epoch }
func (c *connection) Identity() connstate.Identity { return connstate.Identity(c.identity) }

func (c *connection) Err() error {
	if c.life.Err() == nil {
		return nil
	}
	return context.Cause(c.life)
}

func (c *connection) Go(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() == nil {
		c.running.Go(f)
	}
}

// close ends the connection. After that, Go starts no goroutine.
func (c *connection) close(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(reason)
}

// config returns a config without an API server. Every request with the config fails.
func (c *connection) config() *rest.Config {
	return &rest.Config{Host: Target, WrapTransport: func(http.RoundTripper) http.RoundTripper { return noServer{c} }}
}

// noServer is a RoundTripper that fails every request, because there is no API server.
type noServer struct{ conn *connection }

func (n noServer) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	if err := n.conn.Err(); err != nil {
		return nil, err
	}
	return nil, errors.New("the fake has no API server; use GetClient")
}

// Hold returns an informer that uses the client of the test. As in the real ClusterCache, observe
// receives errors of the client.
func (c *connection) Hold(_ context.Context, object client.Object, scope scopedcache.Scope, _ string,
	observe func(scopedcache.ScopeState)) (watches.Informer, error) {
	if observe == nil {
		observe = func(scopedcache.ScopeState) {}
	}
	if _, err := scope.Members(); err != nil {
		return nil, err
	}
	switch {
	case scope.Namespaces == nil:
		return c.hold(object, scope, observe)
	case scope.Namespaces.Names() != nil:
		return c.holdSet(object, scope, observe)
	}
	informer, err := c.holdChanging(object, scope, observe)
	if meta.IsNoMatchError(err) {
		observe(scopedcache.ScopeState{Scope: scope, State: scopedcache.StateNotServed, LastError: err})
		return notServed{}, nil
	}
	return informer, err
}

// hold is Hold for a scope with one informer.
func (c *connection) hold(object client.Object, scope scopedcache.Scope,
	observe func(scopedcache.ScopeState)) (watches.Informer, error) {
	created, err := c.newInformer(object, scope, observe, nil)
	if meta.IsNoMatchError(err) {
		observe(scopedcache.ScopeState{State: scopedcache.StateNotServed, LastError: err})
		return notServed{}, nil
	}
	return created, err
}

// IsClusterScoped implements watches.Connection.
func (c *connection) IsClusterScoped(_ context.Context, kind schema.GroupVersionKind) bool {
	mapping, err := c.testClient.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	return err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot
}

// notServed is the informer of a kind that is not served. The kind stays not served, because the
// client of a test does not change its kinds.
type notServed struct{}

func (notServed) Subscribe(handler toolscache.ResourceEventHandler, options replay.Options) (watches.Subscription,
	error) {
	return emptySubscription{options.Seen}, nil
}
func (notServed) Release() {}

type emptySubscription struct{ known replay.Seen }

func (f emptySubscription) Seen() replay.Seen { return f.known }
func (emptySubscription) Remove()             {}

// scopes returns the states of the informers, sorted.
func (c *connection) scopes() (states []scopedcache.ScopeState) {
	c.mu.Lock()
	informers := slices.Collect(maps.Keys(c.informers))
	c.mu.Unlock()
	for _, i := range informers {
		states = append(states, i.state())
	}
	slices.SortFunc(states, func(x, y scopedcache.ScopeState) int {
		return cmp.Or(cmp.Compare(x.GVK.String(), y.GVK.String()), cmp.Compare(x.Scope.String(), y.Scope.String()))
	})
	return states
}

// applyAccess starts and stops informers after a change of what Forbid took.
func (c *connection) applyAccess() {
	c.mu.Lock()
	informers := slices.Collect(maps.Keys(c.informers))
	c.mu.Unlock()
	for _, i := range informers {
		if i.applyAccess(); i.onAccess != nil {
			i.onAccess()
		}
	}
}
