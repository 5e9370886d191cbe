package accessor

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/accessor/internal/workpool"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/internal/watches"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

var _ watches.Connection = (*connection)(nil)

// connection is what a successful connect makes. Its fields never change once it is published;
// clients are built on first use. After close everything that was handed out fails at once with the
// reason, for ever.
type connection struct {
	options    *Options
	key        client.ObjectKey // of the extension
	generation int64
	stated     Identity              // whom the API server says that we are; set before publishing
	identity   Identity              // that, with what the API server cannot know; set before publishing
	resolved   credential.Resolution // what it was made for

	life  context.Context // ends with the connection; its cause is the *NotConnectedError
	end   context.CancelCauseFunc
	owned *workpool.TaskGroup // that end with life

	config     *rest.Config // authenticates as the identity, holds no secret; copied before it is handed out
	httpClient *http.Client // for requests that end
	streams    *http.Client // for watches: without a timeout
	mapper     *targets.Mapper
	credential atomic.Pointer[boundCredential] // by which requests act as the identity; replaced when its secret is

	served       atomic.Pointer[time.Time] // of the identity's last successful request
	unauthorized func()                    // told of every 401; must not block

	rightsChanged func() // told when the cache lost or won a right or a kind; must not block

	clients func() (*clients, error) // built once, without I/O
	built   atomic.Pointer[clients]  // what clients built
	cluster func() (cluster.Cluster, error)
}

// clients are the clients of a connection.
type clients struct {
	client client.Client // reads cached, writes live
	live   client.Client
	cache  *boundCache
}

// newConnection does no I/O. What it makes must be closed.
func newConnection(parent context.Context, owned *workpool.TaskGroup, options *Options, key client.ObjectKey,
	generation int64,
	t *targets.Target, by *boundCredential, unauthorized, rightsChanged func()) *connection {
	life, end := context.WithCancelCause(parent)
	c := &connection{options: options, key: key, generation: generation, life: life, end: end, owned: owned,
		resolved: by.resolved, unauthorized: unauthorized, rightsChanged: rightsChanged}
	c.credential.Store(by)

	wrap := func(next http.RoundTripper) http.RoundTripper {
		if tlsConfig, err := utilnet.TLSClientConfig(next); err == nil && tlsConfig != nil &&
			(len(tlsConfig.Certificates) > 0 || tlsConfig.GetClientCertificate != nil) {
			// The API server would believe the certificate rather than our token.
			return failingRoundTripper{
				errors.New("the config was given a client certificate; it acts as the extension's identity and as nobody else"),
			}
		}
		return &lifetimeRoundTripper{
			conn: c, next: &identityRoundTripper{conn: c, next: t.Observe(next), own: dialsItself(next)},
		}
	}
	c.config = t.Config()
	c.config.UserAgent = options.Client.UserAgent + " extension/" + KeyString(key)
	c.config.Timeout = options.Client.Timeout
	c.config.QPS, c.config.Burst = options.Client.QPS, options.Client.Burst
	c.config.RateLimiter = &limiter{
		RateLimiter: flowcontrol.NewTokenBucketRateLimiter(options.Client.QPS, options.Client.Burst), conn: c,
	}
	c.config.WrapTransport = wrap

	transport := &lifetimeRoundTripper{conn: c, next: &identityRoundTripper{conn: c, next: t.RoundTripper()}}
	c.httpClient = &http.Client{Transport: transport, Timeout: options.Client.Timeout, CheckRedirect: neverRedirect}
	c.streams = &http.Client{Transport: transport, CheckRedirect: neverRedirect}
	c.mapper = t.Mapper(c.config, c.httpClient)

	c.clients = sync.OnceValues(c.newClients)
	c.cluster = sync.OnceValues(c.newCluster)
	return c
}

// close ends the connection: requests and watches under way, informers, and every handle. Only what
// a caller dials itself is the caller's own: client-go's SPDY (exec, port-forward) does.
func (c *connection) close(reason *NotConnectedError) {
	c.end(reason)
	c.credential.Store(nil) // a handle that is kept does not keep a secret
}

// err is why the connection ended, nil while it lives.
func (c *connection) err() error {
	if c.life.Err() == nil {
		return nil
	}
	return context.Cause(c.life)
}

// bind returns a context that ends with the caller's, with the connection, or after Client.Timeout.
func (c *connection) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancelTimeout := context.WithTimeout(ctx, c.options.Client.Timeout)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })
	return ctx, func() {
		stop()
		cancel(nil)
		cancelTimeout()
	}
}

// scopes returns the states of the cache's scopes, sorted; none before its first use.
func (c *connection) scopes() []scopedcache.ScopeState {
	h := c.built.Load()
	if h == nil {
		return nil
	}
	states := h.cache.States()
	slices.SortFunc(states, func(x, y scopedcache.ScopeState) int {
		return cmp.Or(cmp.Compare(x.GVK.String(), y.GVK.String()), cmp.Compare(x.Representation, y.Representation),
			cmp.Compare(x.Scope.String(), y.Scope.String()))
	})
	return states
}

// Hold implements watches.Connection.
func (c *connection) Hold(ctx context.Context, object client.Object, scope scopedcache.Scope, name string,
	observe func(scopedcache.ScopeState)) (watches.Informer, error) {
	h, err := c.clients()
	if err != nil {
		return nil, err
	}
	held, err := h.cache.Hold(ctx, object, scope, scopedcache.HoldOptions{Name: name, OnStateChange: observe})
	if err != nil {
		return nil, err
	}
	return watched{held}, nil
}

// watched is a handle as watches need it.
type watched struct{ *scopedcache.Handle }

func (w watched) Feed(handler toolscache.ResourceEventHandler, options replay.Options) (watches.Feeding, error) {
	feeding, err := w.Handle.Feed(handler, options)
	if err != nil {
		return nil, err
	}
	return feeding, nil
}

// Life implements watches.Connection.
func (c *connection) Life() context.Context { return c.life }

// Err implements watches.Connection.
func (c *connection) Err() error { return c.err() }

// Go implements watches.Connection.
func (c *connection) Go(f func()) { c.owned.Start(f) }

// Generation implements watches.Connection.
func (c *connection) Generation() int64 { return c.generation }

// Identity implements watches.Connection.
func (c *connection) Identity() Identity {
	identity := c.identity
	identity.Groups = slices.Clone(identity.Groups)
	return identity
}

// lastServed is when a request of the identity last succeeded.
func (c *connection) lastServed() time.Time {
	if last := c.served.Load(); last != nil {
		return *last
	}
	return time.Time{}
}

// restConfig returns a copy that its receiver may change at will.
func (c *connection) restConfig() *rest.Config {
	config := rest.CopyConfig(c.config)
	config.CAData = append([]byte(nil), c.config.CAData...)
	return config
}

func (c *connection) newClients() (*clients, error) {
	options := client.Options{HTTPClient: c.httpClient, Scheme: c.options.Scheme, Mapper: c.mapper}
	live, err := client.New(c.config, options)
	if err != nil {
		return nil, errors.Wrap(err, "making a client")
	}
	bound := newBoundCache(c)
	options.Cache = &client.CacheOptions{Reader: bound, DisableFor: c.options.Client.Cache.DisableFor, Unstructured: true}
	cached, err := client.New(c.config, options)
	if err != nil {
		return nil, errors.Wrap(err, "making a cached client")
	}
	h := &clients{client: cached, live: live, cache: bound}
	c.built.Store(h)
	return h, nil
}

func (c *connection) newCluster() (cluster.Cluster, error) {
	h, err := c.clients()
	if err != nil {
		return nil, err
	}
	made, err := cluster.New(c.restConfig(), func(o *cluster.Options) {
		o.Scheme = c.options.Scheme
		o.Logger = c.options.Logger
		o.HTTPClient = c.streams
		o.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return c.mapper, nil }
		o.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return h.cache, nil }
		o.NewClient = func(*rest.Config, client.Options) (client.Client, error) { return h.client, nil }
	})
	if err != nil {
		return nil, errors.Wrap(err, "making a cluster.Cluster")
	}
	c.owned.Start(func() { _ = made.Start(c.life) }) // ends its event recorders with the connection
	return &boundCluster{Cluster: made, conn: c}, nil
}

// boundCluster is a cluster.Cluster that runs as long as its connection, whoever starts it.
type boundCluster struct {
	cluster.Cluster
	conn *connection
}

// Start returns when ctx is done, or the connection is: then with the reason.
func (b *boundCluster) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-b.conn.life.Done():
		return b.conn.err()
	}
}
