package connection

import (
	"context"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/internal/ownwrites"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// boundCache is the cache of a connection. The cache is created and started on first use, and ends
// with the connection. The caller's context, Client.Timeout and the connection's life bound every
// call.
type boundCache struct {
	conn       *Connection
	scoped     func() (scopedcache.Cache, error)
	instance   atomic.Pointer[scopedcache.Cache]                   // the cache that scoped created
	writes     atomic.Pointer[ownwrites.Writes]                    // that the clients of that cache made
	namespaces map[schema.GroupVersionKind]*scopedcache.Namespaces // that the options name; set by scoped
}

var _ scopedcache.Cache = (*boundCache)(nil)

func newBoundCache(c *Connection) *boundCache {
	b := &boundCache{conn: c}
	b.scoped = sync.OnceValues(func() (scopedcache.Cache, error) {
		options, err := byObject(c.options.Cache.Informers.ByObject, c.resolution.ByObject, c.options.Scheme)
		if err != nil {
			return nil, err
		}
		if b.namespaces, err = namespacesOf(options, c.options.Scheme); err != nil {
			return nil, err
		}
		instance, err := startCache(c, options)
		if err != nil {
			return nil, err
		}
		writes := instance.(interface{ OwnWrites() *ownwrites.Writes }).OwnWrites()
		if c.options.Client.ReadYourWrites {
			writes.Enable()
		}
		b.writes.Store(writes)
		b.instance.Store(&instance)
		return instance, nil
	})
	return b
}

// OwnWrites lets scopedcache.NewClient create a client of the cache.
func (b *boundCache) OwnWrites() *ownwrites.Writes {
	if _, err := b.scoped(); err != nil || b.conn.Err() != nil {
		return ownwrites.New(func(schema.GroupKind) []ownwrites.Informer { return nil }) // each read returns the error
	}
	return b.writes.Load()
}

// startCache creates and starts a cache. startCache does no I/O: a scope sends its first request
// when it is first used.
func startCache(c *Connection, options map[client.Object]cache.ByObject) (scopedcache.Cache, error) {
	scopes, informers := c.options.Cache.Scopes, c.options.Cache.Informers
	scopes.ReadTimeout = c.options.Client.Timeout
	scopes.PerNamespace = true
	scopes.HideServerMessages = c.resolution.UntrustedServer
	scopes.Logger = c.options.Logger.WithValues("extension", klog.KRef(c.key.Namespace, c.key.Name))
	if !c.resolution.UntrustedServer { // it is in the host operator's cluster
		scopes.RBACWatcher, scopes.NamespaceWatcher = c.options.RBACWatcher, c.options.Namespaces
	}
	scopes.ObjectPool = c.objects
	scopes.UnstreamedKinds, scopes.ListLimit = c.unstreamed, c.lists
	scopes.TracerProvider = c.options.TracerProvider
	scopes.Username, scopes.Groups = c.statedIdentity.Username, c.statedIdentity.Groups
	scopes.OnStateChange = notifyAccessChanged(c.observers.AccessChanged)
	scopes.OnLiveGet = c.options.LiveGet
	scopes.OnScopesChange = c.observers.ScopesChanged
	informers.ByObject = options
	informers.HTTPClient = c.streams
	informers.Scheme = c.options.Scheme
	informers.Mapper = c.mapper
	instance, err := scopedcache.NewWithOptions(scopes)(c.config, informers)
	if err != nil {
		return nil, err
	}
	if add := c.options.Cache.AddIndexes; add != nil {
		if err := add(c.life, instance); err != nil {
			return nil, err
		}
	}
	c.tasks.Start(func() { _ = instance.Start(c.life) }) // ends with the connection; fails for no other reason
	instance.WaitForCacheSync(c.life)                    // the cache has no scope yet, so this waits for Start only
	return instance.(scopedcache.Cache), nil
}

// notifyAccessChanged returns the observer of the cache's scopes. The observer calls notify when
// the identity gains or loses access to a kind. The result of the first sync is no change, because
// readers receive that result.
func notifyAccessChanged(notify func()) func(scopedcache.State, scopedcache.ScopeState) {
	return func(previous scopedcache.State, now scopedcache.ScopeState) {
		switch {
		case previous == now.State || previous == scopedcache.StateSyncing:
		case now.State == scopedcache.StateSynced, now.State == scopedcache.StateForbidden,
			now.State == scopedcache.StateNotServed:
			notify()
		}
	}
}

// do calls f with the cache. If the connection has ended, or ends before f returns, do returns the
// reason of that.
func (b *boundCache) do(ctx context.Context, f func(context.Context, scopedcache.Cache) error) error {
	if err := b.conn.Err(); err != nil {
		return err
	}
	scoped, err := b.scoped()
	if err != nil {
		return err
	}
	ctx, cancel := b.conn.bind(ctx)
	defer cancel()
	err = f(ctx, scoped)
	if ended := b.conn.Err(); ended != nil {
		return ended // also instead of a success: the objects that were read may be gone
	}
	return err
}

// Get reads an object. The cache itself bounds the call, and ends with the connection.
func (b *boundCache) Get(ctx context.Context, key client.ObjectKey, object client.Object,
	opts ...client.GetOption) error {
	return b.read(func(c scopedcache.Cache) error { return c.Get(ctx, key, object, opts...) })
}

// List reads objects. The cache bounds the call as it does for Get.
func (b *boundCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return b.read(func(c scopedcache.Cache) error { return c.List(ctx, list, opts...) })
}

// read is do for calls that the cache itself bounds.
func (b *boundCache) read(f func(scopedcache.Cache) error) error {
	if err := b.conn.Err(); err != nil {
		return err
	}
	scoped, err := b.scoped()
	if err != nil {
		return err
	}
	err = f(scoped)
	if ended := b.conn.Err(); ended != nil {
		return ended // also instead of a success: the objects that were read may be gone
	}
	return err
}

func (b *boundCache) GetInformer(ctx context.Context, object client.Object,
	opts ...cache.InformerGetOption) (informer cache.Informer, err error) {
	err = b.do(ctx, func(ctx context.Context, c scopedcache.Cache) error {
		informer, err = c.GetInformer(ctx, object, opts...)
		return err
	})
	return informer, err
}

func (b *boundCache) GetInformerForKind(ctx context.Context, gvk schema.GroupVersionKind,
	opts ...cache.InformerGetOption) (informer cache.Informer, err error) {
	err = b.do(ctx, func(ctx context.Context, c scopedcache.Cache) error {
		informer, err = c.GetInformerForKind(ctx, gvk, opts...)
		return err
	})
	return informer, err
}

// Hold implements scopedcache.Cache. A scope of all namespaces, or wherever the identity may, is of
// those that the options name for the kind.
func (b *boundCache) Hold(ctx context.Context, object client.Object, scope scopedcache.Scope,
	options scopedcache.HoldOptions) (handle *scopedcache.Handle, err error) {
	err = b.do(ctx, func(ctx context.Context, c scopedcache.Cache) error {
		gvk, err := apiutil.GVKForObject(object, b.conn.options.Scheme)
		if set := b.namespaces[gvk]; err == nil && set != nil && isOfAll(scope) {
			scope.Namespaces = set
		}
		handle, err = c.Hold(ctx, object, scope, options)
		return err
	})
	return handle, err
}

// States returns the states of all scopes; none before the first use of the cache.
func (b *boundCache) States() []scopedcache.ScopeState {
	if instance := b.instance.Load(); instance != nil && b.conn.Err() == nil {
		return (*instance).States()
	}
	return nil
}

func (b *boundCache) RemoveInformer(ctx context.Context, object client.Object) error {
	return b.do(ctx, func(ctx context.Context, c scopedcache.Cache) error { return c.RemoveInformer(ctx, object) })
}

func (b *boundCache) IndexField(ctx context.Context, object client.Object, field string,
	extract client.IndexerFunc) error {
	return b.do(ctx, func(ctx context.Context, c scopedcache.Cache) error {
		return c.IndexField(ctx, object, field, extract)
	})
}

// Start waits until ctx or the connection ends. The connection has started the cache.
func (b *boundCache) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-b.conn.life.Done():
	}
	return nil
}

func (b *boundCache) WaitForCacheSync(ctx context.Context) (synced bool) {
	err := b.do(ctx, func(ctx context.Context, c scopedcache.Cache) error {
		synced = c.WaitForCacheSync(ctx)
		return nil
	})
	return synced && err == nil
}
