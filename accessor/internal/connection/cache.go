package connection

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
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
	conn     *Connection
	instance atomic.Pointer[cacheInstance] // nil before the first use

	building  sync.Mutex
	err       error                                               // guarded by building: why there is no instance
	separated scopedcache.Cache                                   // guarded by building: the instance before separate
	options   map[client.Object]cache.ByObject                    // guarded by building
	named     map[schema.GroupVersionKind]*scopedcache.Namespaces // that the options name; set before instance
}

// cacheInstance is a cache that a connection uses.
type cacheInstance struct {
	scopedcache.Cache
	writes *ownwrites.Writes // that the clients of the cache made
	shared bool              // with other connections of the same user
}

var _ scopedcache.Cache = (*boundCache)(nil)

func newBoundCache(c *Connection) *boundCache { return &boundCache{conn: c} }

// scoped returns the cache, and creates it on first use.
func (b *boundCache) scoped() (scopedcache.Cache, error) {
	instance, err := b.current()
	if err != nil {
		return nil, err
	}
	return instance.Cache, nil
}

func (b *boundCache) current() (*cacheInstance, error) {
	if instance := b.instance.Load(); instance != nil {
		return instance, nil
	}
	b.building.Lock()
	defer b.building.Unlock()
	if instance := b.instance.Load(); instance != nil || b.err != nil {
		return instance, b.err
	}
	b.err = b.createLocked()
	return b.instance.Load(), b.err
}

// createLocked creates the cache: one that is shared if the connection is in a room.
func (b *boundCache) createLocked() (err error) {
	if b.options, err = byObject(b.conn.options.Cache.Informers.ByObject, b.conn.resolution.ByObject,
		b.conn.options.Scheme); err != nil {
		return err
	}
	if b.named, err = namespacesOf(b.options, b.conn.options.Scheme); err != nil {
		return err
	}
	create, shared := b.conn.ownCache, b.conn.sharesCache()
	if shared {
		create = b.conn.sharedCache
	}
	created, err := create(b.options)
	if err != nil {
		return err
	}
	b.useLocked(created, shared)
	return nil
}

// useLocked makes callers use a cache.
func (b *boundCache) useLocked(created scopedcache.Cache, shared bool) {
	writes := created.(interface{ OwnWrites() *ownwrites.Writes }).OwnWrites()
	if b.conn.options.Client.ReadYourWrites {
		writes.Enable()
	}
	b.instance.Store(&cacheInstance{Cache: created, writes: writes, shared: shared})
}

// separate gives the connection a cache that it shares with no other. What callers got from the
// shared one stays valid.
func (b *boundCache) separate() error {
	instance, err := b.current()
	if err != nil || !instance.shared {
		return err
	}
	if err := b.separateOnce(instance.Cache); err != nil {
		return err
	}
	b.conn.observers.ScopesChanged()
	return nil
}

// separateOnce replaces the shared cache, unless another caller has done so.
func (b *boundCache) separateOnce(shared scopedcache.Cache) error {
	b.building.Lock()
	defer b.building.Unlock()
	if !b.instance.Load().shared {
		return nil
	}
	created, err := b.conn.ownCache(b.options)
	if err != nil {
		return err
	}
	b.separated = shared
	b.useLocked(created, false)
	return nil
}

// ownWrites returns what the clients of the cache wrote, nil before its first use: a cache that the
// connection alone uses begins with lists, which have earlier writes.
func (b *boundCache) ownWrites() *ownwrites.Writes {
	instance := b.instance.Load()
	if instance == nil && b.conn.sharesCache() {
		instance, _ = b.current() // each read returns the error
	}
	if instance == nil {
		return nil
	}
	return instance.writes
}

// OwnWrites lets scopedcache.NewClient create a client of the cache.
func (b *boundCache) OwnWrites() *ownwrites.Writes {
	if _, err := b.scoped(); err != nil || b.conn.Err() != nil {
		return ownwrites.New(func(schema.GroupKind) []ownwrites.Informer { return nil }) // each read returns the error
	}
	return b.ownWrites()
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
		if set := b.named[gvk]; err == nil && set != nil && isOfAll(scope) {
			scope.Namespaces = set
		}
		handle, err = c.Hold(ctx, object, scope, options)
		return err
	})
	return handle, err
}

// States returns the states of all scopes; none before the first use of the cache.
func (b *boundCache) States() []scopedcache.ScopeState {
	instance := b.instance.Load()
	if instance == nil || b.conn.Err() != nil {
		return nil
	}
	if instance.shared {
		return instance.States()
	}
	return b.withStatesBefore(instance.States())
}

// mayShare reports whether the cache is, or will be, that of the room.
func (b *boundCache) mayShare() bool {
	instance := b.instance.Load()
	return instance == nil || instance.shared
}

// withStatesBefore adds the states of what the connection got before separate and still has. A
// scope that it has in both caches is one, whose dependents are those of both.
func (b *boundCache) withStatesBefore(states []scopedcache.ScopeState) []scopedcache.ScopeState {
	if !b.conn.sharesCache() {
		return states
	}
	b.building.Lock()
	before := b.separated
	b.building.Unlock()
	if before == nil {
		return states
	}
	for _, earlier := range before.States() {
		same := slices.IndexFunc(states, func(s scopedcache.ScopeState) bool {
			return s.GVK == earlier.GVK && s.Representation == earlier.Representation &&
				s.Scope.String() == earlier.Scope.String()
		})
		if same < 0 {
			states = append(states, earlier)
			continue
		}
		dependents := slices.Concat(states[same].Dependents, earlier.Dependents)
		slices.Sort(dependents)
		states[same].Dependents = slices.Compact(dependents)
	}
	return states
}

// ownStates returns the states of the scopes that the connection shares with no other.
func (b *boundCache) ownStates() []scopedcache.ScopeState {
	if instance := b.instance.Load(); instance != nil && !instance.shared && b.conn.Err() == nil {
		return instance.States()
	}
	return nil
}

func (b *boundCache) RemoveInformer(ctx context.Context, object client.Object) error {
	return b.do(ctx, func(ctx context.Context, c scopedcache.Cache) error {
		b.building.Lock()
		before := b.separated
		b.building.Unlock()
		if before != nil {
			if err := before.RemoveInformer(ctx, object); err != nil {
				return err
			}
		}
		return c.RemoveInformer(ctx, object)
	})
}

// IndexField implements client.FieldIndexer. Connections that share a cache may index the same
// field in different ways, so this one shares its cache no more.
func (b *boundCache) IndexField(ctx context.Context, object client.Object, field string,
	extract client.IndexerFunc) error {
	if err := b.separate(); err != nil {
		return err
	}
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

// Scopes returns the states of the cache's scopes, sorted; none before the cache's first use.
func (c *Connection) Scopes() []scopedcache.ScopeState {
	states := c.UnsortedScopes()
	slices.SortFunc(states, func(x, y scopedcache.ScopeState) int {
		return cmp.Or(cmp.Compare(x.GVK.String(), y.GVK.String()), cmp.Compare(x.Representation, y.Representation),
			cmp.Compare(x.Scope.String(), y.Scope.String()))
	})
	return states
}

// UnsortedScopes is Scopes in no particular order.
func (c *Connection) UnsortedScopes() []scopedcache.ScopeState {
	if h := c.builtClients.Load(); h != nil {
		return h.Cache.States()
	}
	return nil
}

// OwnScopes returns the states of the cache's scopes that no other connection shares.
func (c *Connection) OwnScopes() []scopedcache.ScopeState {
	if h := c.builtClients.Load(); h != nil {
		return h.Cache.(*boundCache).ownStates()
	}
	return nil
}
