package scopedcache

import (
	"context"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/latch"
	"github.com/latchkey-dev/latchkey/internal/replay"
)

// durableInformer is a cache.Informer that outlives the informers behind it. A durableInformer
// covers one scope, or one scope for each namespace that the cache's options name.
type durableInformer struct {
	uses []*use
}

// Informer is what GetInformer of a [Cache] returns. Get of Informer reads from the informers that
// feed its event handlers. Get of the cache may use another informer that serves the namespace. So
// an event handler can always read the object that it received.
type Informer interface {
	cache.Informer
	// Get reads an object, as Get of the cache does. Get returns Forbidden if the identity may not
	// list and watch the informer's whole scope.
	Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error
	// Readable returns nil if Get can read, else the reason why not. Readable waits until one of
	// them is known.
	Readable(ctx context.Context) error
}

var _ Informer = durableInformer{}

func (f durableInformer) Get(ctx context.Context, key client.ObjectKey, object client.Object,
	opts ...client.GetOption) error {
	for _, of := range f.uses {
		own := of.entry.selection.scope.Namespace
		if own != metav1.NamespaceAll && own != key.Namespace {
			continue
		}
		running, err := of.awaitReading(ctx)
		if err != nil {
			return err
		}
		return running.Get(ctx, key, object, opts...)
	}
	return errors.Errorf(
		"the cache's options do not name the namespace %q for this informer: unknown namespace for the cache",
		key.Namespace)
}

// Readable returns nil if Get can read, else the reason. Readable waits until one of them is known.
func (f durableInformer) Readable(ctx context.Context) error {
	for _, of := range f.uses {
		if _, err := of.awaitReading(ctx); err != nil {
			return err
		}
	}
	return nil
}

// AddEventHandler adds a handler that outlives informers. When a new informer starts, the handler
// receives an add event for each object again. For objects that were deleted in between it receives
// DeletedFinalStateUnknown. AddEventHandler also succeeds while the identity has no access, or the
// kind is not served.
func (f durableInformer) AddEventHandler(handler toolscache.ResourceEventHandler) (
	toolscache.ResourceEventHandlerRegistration, error) {
	return f.AddEventHandlerWithOptions(handler, toolscache.HandlerOptions{})
}

// AddEventHandlerWithResyncPeriod is AddEventHandler with a resync period. As with any informer, a
// period shorter than the cache's SyncPeriod applies only to informers that start after this call.
func (f durableInformer) AddEventHandlerWithResyncPeriod(handler toolscache.ResourceEventHandler,
	resync time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return f.AddEventHandlerWithOptions(handler, toolscache.HandlerOptions{ResyncPeriod: &resync})
}

// AddEventHandlerWithOptions is AddEventHandler with options.
func (f durableInformer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler,
	options toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	if isConsistencyHandler(handler) {
		return nil, errConsistencyHandler
	}
	result := &registrations{}
	result.left.Store(int64(len(f.uses)))
	for n, of := range f.uses {
		r, err := of.add(of.entry.resumedBy(handler, n, len(f.uses)), options, registrationEvents{settled: func() {
			if result.left.Add(-1) == 0 {
				result.done.Open()
			}
		}})
		if err != nil {
			_ = f.RemoveEventHandler(result) // cannot fail for the registrations so far
			return nil, err
		}
		result.each = append(result.each, r)
	}
	return result, nil
}

// resumedBy returns the handler for the nth of several scopes. A handler that received objects
// before hears only of those in this scope's namespace, because the others miss them. The first
// scope answers for objects without a namespace, too.
func (s *entry) resumedBy(handler toolscache.ResourceEventHandler, n, of int) toolscache.ResourceEventHandler {
	resumed, ok := handler.(replay.ResumedHandler)
	if !ok || of == 1 {
		return handler
	}
	seen := maps.Clone(resumed.Options.Seen)
	maps.DeleteFunc(seen, func(key client.ObjectKey, _ replay.Object) bool {
		return key.Namespace != s.selection.scope.Namespace && (n > 0 || key.Namespace != "")
	})
	resumed.Options.Seen = seen
	return resumed
}

var _ replay.Resumable = (*registrations)(nil)

// Seen implements replay.Resumable.
func (r *registrations) Seen() replay.Seen {
	if len(r.each) == 1 {
		return r.each[0].feed.Seen()
	}
	seen := replay.Seen{}
	for _, one := range r.each {
		maps.Copy(seen, one.feed.Seen())
	}
	return seen
}

// RemoveEventHandler implements cache.Informer. A call of the handler that is in progress
// continues; no other call begins.
func (f durableInformer) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	all, ok := handle.(*registrations)
	if !ok {
		return errors.Errorf("%T is not from AddEventHandler of this informer", handle)
	}
	for _, r := range all.each {
		if err := r.use.entry.remove(r); err != nil {
			return err
		}
	}
	return nil
}

// AddIndexers adds indexers to the existing informers and to later ones.
func (f durableInformer) AddIndexers(indexers toolscache.Indexers) error {
	for _, of := range f.uses {
		if err := of.addIndexers(indexers); err != nil {
			return err
		}
	}
	return nil
}

// addIndexers adds indexers to the scope.
func (u *use) addIndexers(indexers toolscache.Indexers) error {
	if err := u.check("adding indexers to the informer of"); err != nil && u.user.hasBegun() {
		return err
	}
	if u.user.shares {
		return sharedIndexers(indexers)
	}
	return u.entry.addIndexers(indexers)
}

// sharedIndexers returns an error for indexers that a user of a shared cache may not add: those of
// fields. No read of a cache uses others, so that they are left out.
func sharedIndexers(indexers toolscache.Indexers) error {
	for name := range indexers {
		if strings.HasPrefix(name, fieldIndex) {
			return errors.WithMessagef(errSharedIndex, "adding the indexer %q to an informer", name)
		}
	}
	return nil
}

// fieldIndex is how the names of indexers of fields begin in controller-runtime.
const fieldIndex = "field:"

// addIndexers adds indexers to the entry and its running informer. addIndexers returns an error if
// there are indexers of these names already.
func (s *entry) addIndexers(indexers toolscache.Indexers) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range indexers {
		taken := name == toolscache.NamespaceIndex
		for _, others := range s.indexers {
			_, has := others[name]
			taken = taken || has
		}
		for _, index := range s.entries.indexesOf(s.selection.kind) {
			taken = taken || name == fieldIndex+index.field
		}
		if taken {
			return errors.Errorf("there is an indexer %q of %s already", name, s.selection.kind.gvk)
		}
	}
	s.indexers = append(s.indexers, indexers)
	if s.running == nil {
		return nil
	}
	if err := s.indexLocked(s.running); err != nil {
		s.indexers = s.indexers[:len(s.indexers)-1]
		return err
	}
	return nil
}

// HasSynced reports whether the result of a read is known: the objects, Forbidden, or not served.
// So true does not mean that there are objects.
func (f durableInformer) HasSynced() bool {
	for _, of := range f.uses {
		if !of.isSettled() {
			return false
		}
	}
	return true
}

// HasSyncedChecker implements cache.Informer; see HasSynced.
func (f durableInformer) HasSyncedChecker() toolscache.DoneChecker {
	if len(f.uses) == 1 && (f.uses[0].user.since == 0 || f.uses[0].isSettled()) {
		return settledChecker{name: f.name(), done: &f.uses[0].entry.settled}
	}
	done := &latch.Latch{}
	go func() {
		for _, of := range f.uses {
			if of.awaitSettled(context.Background()) != nil {
				return // it ends
			}
		}
		done.Open()
	}()
	return settledChecker{name: f.name(), done: done}
}

func (f durableInformer) name() string {
	var names []string
	for _, of := range f.uses {
		s := of.entry.selection
		names = append(names, strings.TrimSpace(s.kind.gvk.String()+" "+s.scope.String()))
	}
	return strings.Join(names, "; ")
}

// IsStopped reports whether the informer was removed, or the cache has stopped.
func (f durableInformer) IsStopped() bool {
	for _, of := range f.uses {
		select {
		case <-of.gone.Done():
		case <-of.user.stopped():
		default:
			return false
		}
	}
	return true
}

// registrations are the registrations of one handler in all scopes of a durableInformer.
type registrations struct {
	each []*registration
	left atomic.Int64 // how many have not settled
	done latch.Latch
}

func (r *registrations) HasSynced() bool { return r.done.IsOpen() }

func (r *registrations) HasSyncedChecker() toolscache.DoneChecker {
	return settledChecker{name: "handler", done: &r.done}
}
