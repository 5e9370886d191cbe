package connection

import (
	"context"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/accessor/internal/workpool"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// cacheUser is what a cache sends its requests with, and how long it runs.
type cacheUser struct {
	life    context.Context
	tasks   *workpool.TaskGroup
	config  *rest.Config
	streams *http.Client
	mapper  *targets.Mapper
	logger  logr.Logger
}

// ownCache creates and starts a cache that the connection alone uses.
func (c *Connection) ownCache(options map[client.Object]cache.ByObject) (scopedcache.Cache, error) {
	return c.startCache(options, cacheUser{
		life:    c.life,
		tasks:   c.tasks,
		config:  c.config(),
		streams: c.streams,
		mapper:  c.mapper,
		logger:  c.options.Logger.WithValues("extension", klog.KRef(c.key.Namespace, c.key.Name)),
	}, func(scopes *scopedcache.Options) {
		scopes.OnStateChange = notifyAccessChanged(c.observers.AccessChanged)
		scopes.OnScopesChange = c.observers.ScopesChanged
	})
}

// sharesCache reports whether the connection uses a cache with others that are certainly of the
// same user.
func (c *Connection) sharesCache() bool { return c.room != nil }

// SharedCache returns the name of the cache that the connection uses with others, or will use when
// its first reader or watch needs one. It is empty if the connection has one of its own.
func (c *Connection) SharedCache() string {
	if !c.sharesCache() {
		return ""
	}
	if h := c.builtClients.Load(); h != nil && !h.Cache.(*boundCache).mayShare() {
		return ""
	}
	return c.room.Name()
}

// UsesCache reports whether the connection has used its cache.
func (c *Connection) UsesCache() bool {
	h := c.builtClients.Load()
	return h != nil && h.Cache.(*boundCache).instance.Load() != nil
}

// sharedCache returns the connection's use of the cache of its room.
func (c *Connection) sharedCache(options map[client.Object]cache.ByObject) (scopedcache.Cache, error) {
	shared, err := c.room.Cache(func(life context.Context, carrier http.RoundTripper) (scopedcache.Cache, error) {
		config := c.target.Config()
		config.Timeout, config.QPS, config.Burst = c.options.Client.Timeout, c.options.Client.QPS, c.options.Client.Burst
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
		streams := &http.Client{Transport: carrier, CheckRedirect: neverRedirect}
		bounded := &http.Client{Transport: carrier, CheckRedirect: neverRedirect, Timeout: c.options.Client.Timeout}
		return c.startCache(options, cacheUser{
			life:    life,
			tasks:   c.options.Tasks,
			config:  config,
			streams: streams,
			mapper:  c.target.Mapper("", bounded, c.options.Client.MaxDiscoveryBytes),
			logger:  c.options.Logger.WithValues("username", c.statedIdentity.Username),
		}, func(*scopedcache.Options) {})
	})
	if err != nil {
		return nil, err
	}
	left, ok := c.tasks.Add()
	if !ok { // it is too late to begin anything
		left = func() {}
	}
	return shared.(interface {
		NewUser(life context.Context, in *fence.Term, onStateChange func(scopedcache.State, scopedcache.ScopeState),
			onScopesChange, ended func()) scopedcache.Cache
	}).NewUser(c.life, c.term, notifyAccessChanged(c.observers.AccessChanged), c.observers.ScopesChanged, left), nil
}

// startCache creates and starts a cache. startCache does no I/O: a scope sends its first request
// when it is first used.
func (c *Connection) startCache(options map[client.Object]cache.ByObject, of cacheUser,
	observe func(*scopedcache.Options)) (scopedcache.Cache, error) {
	scopes, informers := c.options.Cache.Scopes, c.options.Cache.Informers
	scopes.ReadTimeout = c.options.Client.Timeout
	scopes.PerNamespace = true
	scopes.HideServerMessages = c.resolution.UntrustedServer
	scopes.Logger = of.logger
	if !c.resolution.UntrustedServer { // it is in the host operator's cluster
		scopes.RBACWatcher, scopes.NamespaceWatcher = c.options.RBACWatcher, c.options.Namespaces
	}
	scopes.ObjectPool = c.objects
	scopes.UnstreamedKinds, scopes.ListLimit = c.unstreamed, c.lists
	scopes.TracerProvider = c.options.TracerProvider
	scopes.Username, scopes.Groups = c.statedIdentity.Username, c.statedIdentity.Groups
	scopes.OnLiveGet = c.options.LiveGet
	observe(&scopes)
	informers.ByObject = options
	informers.HTTPClient = of.streams
	informers.Scheme = c.options.Scheme
	informers.Mapper = of.mapper
	instance, err := scopedcache.NewWithOptions(scopes)(of.config, informers)
	if err != nil {
		return nil, err
	}
	if c.term != nil {
		instance.(interface{ ListLatest() }).ListLatest()
	}
	if add := c.options.Cache.AddIndexes; add != nil {
		if err := add(of.life, instance); err != nil {
			return nil, err
		}
	}
	of.tasks.Start(func() { _ = instance.Start(of.life) }) // ends with its life; fails for no other reason
	instance.WaitForCacheSync(of.life)                     // the cache has no scope yet, so this waits for Start only
	return instance.(scopedcache.Cache), nil
}
