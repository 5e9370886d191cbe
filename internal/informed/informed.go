package informed

import (
	"context"
	"reflect"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var _ client.Reader = Reader{}

// Reader reads the host operator's cache from the very informers that feed handlers. What a handler
// was called for is there to be read, and what may be read is known as soon as handlers know it.
// With a scopedcache a plain read could use another informer, of one namespace, where the one of
// all namespaces is Forbidden. It may be used from any goroutine.
type Reader struct {
	cache cache.Cache

	mu        *sync.Mutex
	informers map[informedKind]scopedInformer // guarded by mu
}

// informedKind is a kind in a representation.
type informedKind struct {
	goType reflect.Type
	kind   string // of objects without a Go type of their own
}

// scopedInformer is scopedcache.Informer; a cache that has others reads as it does.
type scopedInformer interface {
	Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error
	Readable(ctx context.Context) error
}

// readPatience bounds a read that waits for an informer to sync: all extensions wait for it.
const readPatience = 2 * time.Second

// NewReader returns a reader of a cache.
func NewReader(c cache.Cache) Reader {
	return Reader{cache: c, mu: &sync.Mutex{}, informers: map[informedKind]scopedInformer{}}
}

// Get is that of the cache. It waits for 2 s at most.
func (r Reader) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	if informer := r.informer(ctx, object); informer != nil {
		return informer.Get(ctx, key, object, opts...)
	}
	return r.cache.Get(ctx, key, object, opts...)
}

// List is that of the cache.
func (r Reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return r.cache.List(ctx, list, opts...)
}

// Readable reports whether objects of that kind can be read, or why not; false if the cache does
// not say.
func (r Reader) Readable(ctx context.Context, object client.Object) (bool, error) {
	informer := r.informer(ctx, object)
	if informer == nil {
		return false, nil
	}
	err := informer.Readable(ctx)
	return err == nil, err
}

// informer returns that of the object's kind, nil if the cache has none that can be read.
func (r Reader) informer(ctx context.Context, object client.Object) scopedInformer {
	key := informedKind{goType: reflect.TypeOf(object), kind: object.GetObjectKind().GroupVersionKind().String()}
	r.mu.Lock()
	known, ok := r.informers[key]
	r.mu.Unlock()
	if ok {
		return known
	}
	found, err := r.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return nil
	}
	informer, _ := found.(scopedInformer)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.informers[key] = informer
	return informer
}
