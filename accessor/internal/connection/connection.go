package connection

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/accessor/internal/rooms"
	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/accessor/internal/workpool"
	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/ownwrites"
	"github.com/latchkey-dev/latchkey/internal/permissioncheck"
	"github.com/latchkey-dev/latchkey/internal/permissions"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

var _ watches.Connection = (*Connection)(nil)

// Connection is the result of a successful connect. Its fields do not change after the connection
// is published; clients are built on first use. After Close, every handle of the connection fails
// at once with the reason, permanently.
type Connection struct {
	options        *Options
	key            client.ObjectKey // of the extension
	epoch          int64
	statedIdentity connstate.Identity // as the API server stated it; set before publishing
	// statedIdentity, with fields that the API server cannot know; set before publishing
	identity   connstate.Identity
	resolution identity.Resolution // that the connection was created for

	life       context.Context // ends with the connection; its cause is the *NotConnectedError
	end        context.CancelCauseFunc
	term       *fence.Term // the connection ends with it; nil for none
	termReason connstate.Reason
	tasks      *workpool.TaskGroup // the tasks end with life

	target     *targets.Target
	userAgent  string
	limiter    flowcontrol.RateLimiter
	shared     http.RoundTripper // sends requests as the identity, by what the target's members share
	httpClient *http.Client      // for requests that end
	streams    *http.Client      // for watches: without a timeout
	mapper     *targets.Mapper
	requests   *Requests                            // of the extension; nil if they are not counted
	record     *permissions.Record                  // of the identity; set before publishing; nil for none
	refused    func()                               // called when the record has a refusal; set with it
	refusals   atomic.Pointer[permissions.Refusals] // of controllers' requests; nil before the first
	credential atomic.Pointer[Credential]           // authenticates requests; replaced with its secret

	extensionUID  types.UID              // of the object that the connection was created for
	objectVersion atomic.Pointer[string] // of that object; see MadeFor

	room       *rooms.Membership // set before publishing; nil if the connection shares nothing
	evidence   *rooms.Evidence   // of the room, or of this connection alone
	observers  Observers
	objects    *scopedcache.ObjectPool      // nil if objects are not shared
	unstreamed *scopedcache.UnstreamedKinds // of the target
	lists      *scopedcache.ListLimit       // of the target

	clients      func() (*Clients, error) // built once, without I/O
	builtClients atomic.Pointer[Clients]  // the result of clients
	checker      atomic.Pointer[permissioncheck.Checker]
	cluster      func() (cluster.Cluster, error)
}

// Clients are the clients of a connection.
type Clients struct {
	Cached   client.Client // reads from the cache, writes to the API server
	Uncached client.Client
	Cache    scopedcache.Cache
}

// Extension is the extension that a connection is for.
type Extension struct {
	Key  client.ObjectKey
	UID  types.UID
	Term *fence.Term // in which this replica may act for the extension; nil for any time
	// TermReason is the reason of connections that end with the term.
	TermReason connstate.Reason
	// Requests of the extension, which can be refused; nil if they are never.
	Requests *Requests
}

// Observers are called from any goroutine, and must not block. All must be set.
type Observers struct {
	Unauthorized  func() // for every 401
	AccessChanged func() // when the cache gained or lost access to a kind
	ScopesChanged func() // when a scope of the cache began, ended, or changed
}

// New returns a connection. New does no I/O. The caller must close the connection, and call
// SetIdentity before others get it. The tasks of the connection end with it.
func New(parent context.Context, tasks *workpool.TaskGroup, options *Options, extension Extension, epoch int64,
	t *targets.Target, bound *Credential, observers Observers) *Connection {
	life, end := context.WithCancelCause(parent)
	c := &Connection{
		options:      options,
		key:          extension.Key,
		extensionUID: extension.UID,
		epoch:        epoch,
		life:         life,
		end:          end,
		tasks:        tasks,
		term:         extension.Term,
		termReason:   extension.TermReason,
		requests:     extension.Requests,
		resolution:   bound.resolution,
		observers:    observers,
		evidence:     &rooms.Evidence{},
		target:       t,
	}
	c.Use(bound)
	c.shared = &identityRoundTripper{wrapper: wrapper{t.RoundTripper()}, conn: c}

	c.userAgent = options.Client.UserAgent + " extension/" + connstate.KeyString(extension.Key)
	c.limiter = &limiter{
		RateLimiter: flowcontrol.NewTokenBucketRateLimiter(options.Client.QPS, options.Client.Burst),
		conn:        c,
	}

	transport := c.roundTripper(c.shared, false)
	c.httpClient = &http.Client{Transport: transport, Timeout: options.Client.Timeout, CheckRedirect: neverRedirect}
	c.streams = &http.Client{Transport: transport, CheckRedirect: neverRedirect}
	c.mapper = t.Mapper(c.userAgent, c.httpClient, options.Client.MaxDiscoveryBytes)
	if !options.Cache.DisableObjectSharing {
		c.objects = t.Objects()
	}
	c.unstreamed, c.lists = t.UnstreamedKinds(), t.ListLimit()

	c.clients = sync.OnceValues(func() (*Clients, error) { return newClients(c) })
	c.cluster = sync.OnceValues(func() (cluster.Cluster, error) { return newCluster(c) })
	return c
}

// Close ends the connection: requests and watches under way, informers, and every handle. Only
// connections that a caller dials are the caller's responsibility. client-go's SPDY (exec,
// port-forward) dials such connections.
func (c *Connection) Close(reason *connstate.NotConnectedError) {
	c.end(reason)
	c.credential.Store(nil) // a retained handle does not retain a secret
}

// Err returns why the connection ended, nil while the connection is alive. If the owner of the
// connection has not noticed yet that the term has ended, Err ends the connection.
func (c *Connection) Err() error {
	if c.life.Err() == nil {
		closed := c.term.Err()
		if closed == nil {
			return nil
		}
		c.closeWithTerm(closed)
	}
	return context.Cause(c.life)
}

func (c *Connection) closeWithTerm(cause error) {
	c.Close(&connstate.NotConnectedError{Extension: c.key, Reason: c.termReason, Since: time.Now(), Err: cause})
}

// bind returns a context that ends with ctx, with the connection, or after Client.Timeout.
func (c *Connection) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancelTimeout := context.WithTimeout(ctx, c.options.Client.Timeout)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })
	return ctx, func() {
		stop()
		cancel(nil)
		cancelTimeout()
	}
}

// SetIdentity sets the identity that the API server stated. Call it once, before others get the
// connection.
func (c *Connection) SetIdentity(stated connstate.Identity) {
	c.statedIdentity, c.identity = stated, stated
	if c.identity.UID == "" {
		c.identity.UID = c.resolution.UID
	}
}

// Use makes requests use the credential from now on.
func (c *Connection) Use(credential *Credential) { c.credential.Store(credential) }

// Credential returns the credential in use, nil after the connection has ended.
func (c *Connection) Credential() *Credential { return c.credential.Load() }

// Binding is what an object says about its connection.
type Binding struct {
	UID types.UID // empty if the object cannot be an extension
	// Reference is what the object names. If it is the WholeObject, Version decides.
	Reference identity.Reference
	Version   string
	// Err is why no connection can be for the object, nil if one can.
	Err error
	// Mistake is why the object can be no extension, ever; nil if it can.
	Mistake error
}

// SetObjectVersion records the version of the extension that the connection is for, if only the
// whole extension determines the credential. The version may change while the connection lives.
func (c *Connection) SetObjectVersion(version string) {
	if last := c.objectVersion.Load(); last == nil || *last != version {
		c.objectVersion.Store(&version)
	}
}

// MadeFor returns nil if the connection was made for an object with this binding, or else the
// difference.
func (c *Connection) MadeFor(b Binding) error {
	switch version := c.objectVersion.Load(); {
	case b.Err != nil:
		return b.Err
	case b.UID != c.extensionUID:
		return errors.Errorf("the connection is for the object with UID %q, not %q", c.extensionUID, b.UID)
	case b.Reference != c.resolution.Reference:
		return errors.Errorf("the connection is for %q, and the object refers to %q", c.resolution.Reference.Name,
			b.Reference.Name)
	case b.Reference.WholeObject && (version == nil || *version != b.Version):
		return errors.New("the connection is for another version of the object")
	}
	return nil
}

// Resolution returns what the connection was created for. It cannot be opened again.
func (c *Connection) Resolution() identity.Resolution { return c.resolution }

// Host returns the URL of the API server.
func (c *Connection) Host() string { return c.target.Host() }

// HTTPClient returns the client for requests that end.
func (c *Connection) HTTPClient() *http.Client { return c.httpClient }

// Clients returns the clients of the connection, built on first use without I/O.
func (c *Connection) Clients() (*Clients, error) { return c.clients() }

// Cluster returns the connection as a cluster.Cluster, built on first use without I/O.
func (c *Connection) Cluster() (cluster.Cluster, error) { return c.cluster() }

// Hold implements watches.Connection.
func (c *Connection) Hold(ctx context.Context, object client.Object, scope scopedcache.Scope, name string,
	observe func(scopedcache.ScopeState)) (watches.Informer, error) {
	h, err := c.clients()
	if err != nil {
		return nil, err
	}
	handle, err := h.Cache.Hold(ctx, object, scope, scopedcache.HoldOptions{Name: name, OnStateChange: observe})
	if err != nil {
		return nil, err
	}
	return watchHandle{handle}, nil
}

// IsClusterScoped implements watches.Connection.
func (c *Connection) IsClusterScoped(ctx context.Context, kind schema.GroupVersionKind) bool {
	ctx, cancel := c.bind(ctx)
	defer cancel()
	mapping, err := c.mapper.RESTMappingWithContext(ctx, kind.GroupKind(), kind.Version)
	return err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot
}

// watchHandle is a handle with the methods that package watches needs.
type watchHandle struct{ *scopedcache.Handle }

func (w watchHandle) Subscribe(handler toolscache.ResourceEventHandler, options replay.Options) (watches.Subscription,
	error) {
	registration, err := w.Handle.AddEventHandler(replay.ResumedHandler{ResourceEventHandler: handler, Options: options})
	if err != nil {
		return nil, err
	}
	return subscription{Resumable: registration.(replay.Resumable), handle: w.Handle}, nil
}

// subscription is a handler that receives events from a handle.
type subscription struct {
	replay.Resumable
	handle *scopedcache.Handle
}

// Remove implements watches.Subscription.
func (s subscription) Remove() { _ = s.handle.RemoveEventHandler(s.Resumable) } // fails only for unknown handlers

// Life implements watches.Connection.
func (c *Connection) Life() context.Context { return c.life }

// Go implements watches.Connection.
func (c *Connection) Go(f func()) { c.tasks.Start(f) }

// Epoch implements watches.Connection.
func (c *Connection) Epoch() int64 { return c.epoch }

// Identity implements watches.Connection.
func (c *Connection) Identity() connstate.Identity {
	identity := c.identity
	identity.Groups = slices.Clone(identity.Groups)
	return identity
}

// RESTConfig returns the connection's config, which the caller may change.
func (c *Connection) RESTConfig() *rest.Config {
	config := c.config()
	config.CAData = slices.Clone(config.CAData)
	return config
}

// config returns a config that authenticates as the identity, and holds no secret of it. It is made
// each time: few need it, and it takes more memory than the rest of an idle connection's clients.
func (c *Connection) config() *rest.Config {
	config := c.target.Config()
	config.UserAgent = c.userAgent
	config.Timeout = c.options.Client.Timeout
	config.QPS, config.Burst = c.options.Client.QPS, c.options.Client.Burst
	config.RateLimiter = c.limiter
	config.WrapTransport = c.wrapTransport
	return config
}

// wrapTransport makes a transport that a caller has built from the config send requests as the
// identity.
func (c *Connection) wrapTransport(next http.RoundTripper) http.RoundTripper {
	if tlsConfig, err := utilnet.TLSClientConfig(next); err == nil && tlsConfig != nil &&
		(len(tlsConfig.Certificates) > 0 || tlsConfig.GetClientCertificate != nil) {
		// The API server would authenticate the certificate instead of our token.
		return failingRoundTripper{
			errors.New("a client certificate was added to the config, which authenticates only as the extension's " +
				"identity"),
		}
	}
	ownDialer := dialsItself(next)
	if c.term != nil && !ownDialer {
		// The caller's transport does not look at the time before each write; the target's does.
		return c.roundTripper(c.shared, false)
	}
	return c.roundTripper(&identityRoundTripper{wrapper{c.target.Observe(next)}, c, ownDialer}, false)
}

func newClients(c *Connection) (*Clients, error) {
	via, ownWrites := c.httpClient, c.options.Client.ReadYourWrites
	if ownWrites {
		via = ownwrites.HTTPClient(c.httpClient)
	}
	live, err := newFollowingClient(c, via, nil)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client")
	}
	bound := newBoundCache(c)
	cached, err := newFollowingClient(c, via,
		&client.CacheOptions{Reader: bound, DisableFor: c.options.Client.DisableFor})
	if err != nil {
		return nil, errors.Wrap(err, "creating a cached client")
	}
	h := &Clients{Cached: cached, Uncached: live, Cache: bound}
	if ownWrites {
		h.Cached, h.Uncached = ownwrites.NewClient(cached, bound.ownWrites), ownwrites.NewClient(live, bound.ownWrites)
	}
	c.builtClients.Store(h)
	return h, nil
}
