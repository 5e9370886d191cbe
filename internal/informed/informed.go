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

// Reader reads the host operator's cache from the same informers that feed handlers. A handler can
// therefore read every object that it received, and Readable changes together with the events. With
// a scopedcache, a plain read could use another informer: one of a single namespace, while the
// informer of all namespaces is Forbidden. A Reader may be used from any goroutine.
type Reader struct {
	cache cache.Cache

	mu        *sync.Mutex
	informers map[informedKind]scopedInformer // guarded by mu
}

// informedKind is a kind in one representation.
type informedKind struct {
	goType reflect.Type
	kind   string // of objects without a Go type of their own
}

// scopedInformer is scopedcache.Informer. A cache with other informers is read directly.
type scopedInformer interface {
	Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error
	Readable(ctx context.Context) error
}

// readTimeout bounds a read that waits for an informer to sync, because all extensions wait for
// that read.
const readTimeout = 2 * time.Second

// NewReader returns a Reader of a cache.
func NewReader(c cache.Cache) Reader {
	return Reader{cache: c, mu: &sync.Mutex{}, informers: map[informedKind]scopedInformer{}}
}

// Get implements client.Reader. Get waits for 2 s at most.
func (r Reader) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if informer := r.informer(ctx, object); informer != nil {
		return informer.Get(ctx, key, object, opts...)
	}
	return r.cache.Get(ctx, key, object, opts...)
}

// List implements client.Reader with the List of the cache.
func (r Reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return r.cache.List(ctx, list, opts...)
}

// Readable reports whether objects of that kind can be read. If they cannot, the error is the
// reason. If the cache cannot report this, Readable returns false and nil.
func (r Reader) Readable(ctx context.Context, object client.Object) (bool, error) {
	informer := r.informer(ctx, object)
	if informer == nil {
		return false, nil
	}
	err := informer.Readable(ctx)
	return err == nil, err
}

// informer returns the informer of the object's kind, or nil if the cache has none that can be
// read.
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
