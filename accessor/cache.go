package accessor

import (
	"context"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// boundCache is the cache of a connection: made and started on first use, ended with the
// connection. Every call is bounded by the caller's context, by Client.Timeout and by the
// connection's life, whichever is first.
type boundCache struct {
	conn   *connection
	scoped func() (scopedcache.Cache, error)
	made   atomic.Pointer[scopedcache.Cache] // what scoped made
}

var _ scopedcache.Cache = (*boundCache)(nil)

func newBoundCache(c *connection) *boundCache {
	b := &boundCache{conn: c}
	b.scoped = sync.OnceValues(func() (scopedcache.Cache, error) {
		made, err := c.startCache()
		if err == nil {
			b.made.Store(&made)
		}
		return made, err
	})
	return b
}

// startCache does no I/O: a scope asks the API server when it is first used.
func (c *connection) startCache() (scopedcache.Cache, error) {
	made, err := scopedcache.NewWithOptions(scopedcache.Options{
		AccessReviewInterval: c.options.Cache.AccessReviewInterval,
		IdleTimeout:          c.options.Cache.IdleTimeout,
		PollWithoutWatch:     c.options.Cache.PollWithoutWatch,
		ReadTimeout:          c.options.Client.Timeout,
		PerNamespace:         true,
		HideServerMessages:   c.resolved.UntrustedServer,
		Logger:               c.options.Logger.WithValues("extension", klog.KRef(c.key.Namespace, c.key.Name)),
		RBACWatcher:          c.rbacEvents(),
		Username:             c.stated.Username,
		Groups:               c.stated.Groups,
		OnStateChange:        c.scopeChanged,
	})(c.config, cache.Options{
		HTTPClient:       c.streams,
		Scheme:           c.options.Scheme,
		Mapper:           c.mapper,
		SyncPeriod:       c.options.Cache.SyncPeriod,
		DefaultTransform: c.options.Cache.DefaultTransform,
		ByObject:         c.options.Cache.ByObject,
	})
	if err != nil {
		return nil, err
	}
	for _, index := range c.options.Cache.Indexes {
		if err := made.IndexField(c.life, index.Object, index.Field, index.ExtractValue); err != nil {
			return nil, err
		}
	}
	c.owned.Start(func() { _ = made.Start(c.life) }) // ends with the connection and never fails otherwise
	made.WaitForCacheSync(c.life)                    // it has no scope yet, so this waits for Start only
	return made.(scopedcache.Cache), nil
}

// rbacEvents are those of the host operator's cluster, for connections to it.
func (c *connection) rbacEvents() *scopedcache.RBACWatcher {
	if c.resolved.UntrustedServer {
		return nil
	}
	return c.options.RBACWatcher
}

// scopeChanged has extension sources told when a right or a kind is lost or won. What is so from
// the start readers are told.
func (c *connection) scopeChanged(before scopedcache.State, now scopedcache.ScopeState) {
	switch {
	case before == now.State || before == scopedcache.Syncing:
	case now.State == scopedcache.Synced, now.State == scopedcache.Forbidden, now.State == scopedcache.NotServed:
		c.rightsChanged()
	}
}

// do calls f with the cache unless the connection has ended, and says so when it ends meanwhile.
func (b *boundCache) do(ctx context.Context, f func(context.Context, scopedcache.Cache) error) error {
	if err := b.conn.err(); err != nil {
		return err
	}
	scoped, err := b.scoped()
	if err != nil {
		return err
	}
	ctx, cancel := b.conn.bind(ctx)
	defer cancel()
	err = f(ctx, scoped)
	if ended := b.conn.err(); ended != nil {
		return ended // also instead of a success: what was read may be gone
	}
	return err
}

// Get is bounded by the cache itself, which ends with the connection.
func (b *boundCache) Get(ctx context.Context, key client.ObjectKey, object client.Object,
	opts ...client.GetOption) error {
	return b.read(func(c scopedcache.Cache) error { return c.Get(ctx, key, object, opts...) })
}

// List is bounded as Get is.
func (b *boundCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return b.read(func(c scopedcache.Cache) error { return c.List(ctx, list, opts...) })
}

// read is do for what ends by itself.
func (b *boundCache) read(f func(scopedcache.Cache) error) error {
	if err := b.conn.err(); err != nil {
		return err
	}
	scoped, err := b.scoped()
	if err != nil {
		return err
	}
	err = f(scoped)
	if ended := b.conn.err(); ended != nil {
		return ended // also instead of a success: what was read may be gone
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

func (b *boundCache) Hold(ctx context.Context, object client.Object, scope scopedcache.Scope,
	options scopedcache.HoldOptions) (held *scopedcache.Handle, err error) {
	err = b.do(ctx, func(ctx context.Context, c scopedcache.Cache) error {
		held, err = c.Hold(ctx, object, scope, options)
		return err
	})
	return held, err
}

// States is empty before the first use.
func (b *boundCache) States() []scopedcache.ScopeState {
	if made := b.made.Load(); made != nil && b.conn.err() == nil {
		return (*made).States()
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

// Start waits for the end of ctx or of the connection, which started the cache.
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
