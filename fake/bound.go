package fake

import (
	"context"
	"reflect"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// For implements clustercache.ClusterCache. The extension's connection is for the object that
// SetExtension set: calls for an object with another UID, or of another kind, are stale. Calls for
// an object without a UID are not, because controller-runtime's fake client creates such objects.
// Without SetExtension no object is stale. MakeStale simulates a reference that has changed.
func (f *Cache) For(_ context.Context, extension client.Object) clustercache.Bound {
	return &bound{cache: f, key: client.ObjectKeyFromObject(extension), object: extension}
}

// MakeStale simulates an extension that refers to another identity than the one of its connection:
// calls of For return ReasonStale until the next Connect or SetExtension.
func (f *Cache) MakeStale(key client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.getOrAddLocked(key).stale = true
}

// errStale is in the chain of the errors of calls that are stale.
var errStale = errors.New("stale")

type staleError struct{ error }

func (staleError) Is(target error) bool { return target == errStale }

// bound is the clustercache.Bound of a Cache.
type bound struct {
	cache  *Cache
	key    client.ObjectKey
	object client.Object
}

// check returns why a call for the object fails.
func (b *bound) check() error {
	if err := b.mistake(); err != nil {
		return err
	}
	e, err := b.cache.connected(b.key)
	if err != nil {
		return err
	}
	if err := e.madeFor(b.object); err != nil {
		return &clustercache.NotConnectedError{
			Extension: b.key,
			Reason:    clustercache.ReasonStale,
			Since:     e.since,
			Err:       staleError{err},
		}
	}
	return nil
}

// mistake returns why the object can be no extension, nil if it can, or if the test has not said
// which objects are extensions.
func (b *bound) mistake() error {
	if b.object == nil {
		return connstate.Mistake("the object is nil")
	}
	b.cache.mu.Lock()
	defer b.cache.mu.Unlock()
	e, known := b.cache.byKey[b.key]
	if !known || !e.objectSet {
		return nil
	}
	want, got := e.object.GetObjectKind().GroupVersionKind(), b.object.GetObjectKind().GroupVersionKind()
	if reflect.TypeOf(b.object) != reflect.TypeOf(e.object) || !want.Empty() && !got.Empty() && want != got {
		return connstate.Mistake("the object is a %T (%s), and the one of SetExtension a %T (%s)", b.object, got, e.object,
			want)
	}
	return nil
}

// madeFor returns nil if the connection is for the object.
func (e *extension) madeFor(object client.Object) error {
	if e.stale {
		return errors.New("MakeStale was called")
	}
	if !e.objectSet {
		return nil // the test has not said which object it is
	}
	if !e.isOf(object) {
		return errors.Errorf("the object has UID %q, and the one of SetExtension %q", object.GetUID(), e.object.GetUID())
	}
	got, err := e.conn.testClient.GroupVersionKindFor(object)
	if err != nil {
		return errors.WithMessage(err, "the kind of the object")
	}
	want, err := e.conn.testClient.GroupVersionKindFor(e.object)
	if err != nil {
		return errors.WithMessage(err, "the kind of the object of SetExtension")
	}
	if got.GroupKind() != want.GroupKind() {
		return errors.Errorf("the object is a %s, and the one of SetExtension a %s", got.GroupKind(), want.GroupKind())
	}
	return nil
}

// isOf reports whether the extension is that of the object.
func (e *extension) isOf(object client.Object) bool {
	return !e.objectSet || object.GetUID() == "" || object.GetUID() == e.object.GetUID()
}

// GetClient implements clustercache.Bound.
func (b *bound) GetClient(ctx context.Context) (client.Client, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	return b.cache.GetClient(ctx, b.key)
}

// GetReader implements clustercache.Bound.
func (b *bound) GetReader(ctx context.Context) (client.Reader, error) { return b.GetClient(ctx) }

// GetUncachedClient implements clustercache.Bound.
func (b *bound) GetUncachedClient(ctx context.Context) (client.Client, error) {
	return b.GetClient(ctx)
}

// GetRESTConfig implements clustercache.Bound.
func (b *bound) GetRESTConfig(ctx context.Context) (*rest.Config, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	return b.cache.GetRESTConfig(ctx, b.key)
}

// GetCluster implements clustercache.Bound.
func (b *bound) GetCluster(ctx context.Context) (cluster.Cluster, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	return b.cache.GetCluster(ctx, b.key)
}

// Watch implements clustercache.Bound.
func (b *bound) Watch(ctx context.Context, watcher clustercache.Watcher) error {
	if err := b.check(); err != nil {
		return err
	}
	return b.cache.Watch(ctx, b.key, watcher)
}

// WatchContent implements clustercache.Bound.
func (b *bound) WatchContent(ctx context.Context, content clustercache.ContentWatch) error {
	if err := b.check(); err != nil {
		return err
	}
	return b.cache.WatchContent(ctx, b.key, content)
}

// Unwatch implements clustercache.Bound.
func (b *bound) Unwatch(ctx context.Context, name string, dependents ...types.UID) {
	if b.isKnown() {
		b.cache.Unwatch(ctx, b.key, name, dependents...)
	}
}

// GetConnectionState implements clustercache.Bound.
func (b *bound) GetConnectionState(ctx context.Context) (clustercache.ConnectionState, bool) {
	if b.mistake() != nil || errors.Is(b.check(), errStale) || !b.isKnown() {
		return clustercache.ConnectionState{}, false
	}
	return b.cache.GetConnectionState(ctx, b.key)
}

// isKnown reports whether the extension of the object is known.
func (b *bound) isKnown() bool {
	if b.mistake() != nil {
		return false
	}
	b.cache.mu.Lock()
	defer b.cache.mu.Unlock()
	e, known := b.cache.byKey[b.key]
	return known && e.isOf(b.object) && (e.conn == nil || e.madeFor(b.object) == nil)
}
