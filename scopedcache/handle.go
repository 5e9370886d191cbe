package scopedcache

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/replay"
)

// HoldOptions say who holds a scope.
type HoldOptions struct {
	// Dependent is who needs the scope, by UID. To hold the same scope again by the same Name for
	// the same Dependent gives the same handle, which one Release ends; Observe of the later Hold
	// is ignored. Empty gives a handle of its own each time.
	Dependent types.UID
	// Name tells apart who holds a scope for the same dependent: the name of a controller, or of a
	// watch. ScopeState lists it.
	Name string
	// Observe, if not nil, is told when the state of the scope, or its LastError, changes, from any
	// goroutine, but one after the other. It must not block, nor call the cache or the handle; a
	// panic ends the process. What the state is when it is held it is told too, unless that is
	// Syncing.
	Observe func(ScopeState)
}

// Handle is somebody's hold on a scope: a reader of what it selects, and its informer, which
// outlives the loss of rights and kinds. The scope lives until the last handle is released, unless
// it is read through the cache, or somebody got its informer, too. Its methods may be called from
// any goroutine.
type Handle struct {
	durableInformer
	entry   *entry
	options HoldOptions
	release func()
	dead    atomic.Bool // it was released
}

var _ client.Reader = (*Handle)(nil)

// Hold implements Cache.
func (s *scopedCache) Hold(_ context.Context, object client.Object, scope Scope, options HoldOptions) (*Handle, error) {
	kind, err := s.kindOf(object)
	if err != nil {
		return nil, err
	}
	if scope.selectsNothing() {
		return nil,
			errors.Errorf("the scope of %s selects nothing (%s): an API server would take that for everything", kind.gvk,
				scope)
	}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil, s.stopError()
	}
	e := s.entryLocked(kind, scope)
	for handle := range e.handles {
		if options.Dependent != "" && handle.options.Dependent == options.Dependent && handle.options.Name == options.Name {
			s.mu.Unlock()
			return handle, nil
		}
	}
	handle := &Handle{durableInformer: durableInformer{entries: []*entry{e}}, entry: e, options: options}
	handle.release = sync.OnceFunc(func() {
		handle.dead.Store(true)
		e.unobserve(handle)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(e.handles, handle)
		s.dropUnusedLocked(e)
	})
	e.handles[handle] = struct{}{}
	s.mu.Unlock()
	if options.Observe != nil {
		if e.observe(handle, options.Observe); handle.dead.Load() {
			e.unobserve(handle) // somebody who got the same one has released it
		}
	}
	return handle, nil
}

// Release gives the scope back; it may be called again. With the last handle the informer stops,
// and reads through any of them fail with ErrReleased. Handlers that were added through this one
// are called on while others hold the scope: remove them before.
func (h *Handle) Release() { h.release() }

// State is a snapshot of the scope. It takes time in proportion to the objects.
func (h *Handle) State() ScopeState { return h.entry.snapshot() }

// Get reads an object from the scope, of the kind and in the representation that is held. What the
// scope does not select is not found, whether it exists or not.
func (h *Handle) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	reader, err := h.reader(ctx, object, key.Namespace)
	if err != nil {
		return err
	}
	return reader.Get(ctx, key, object, opts...)
}

// List reads from the scope, and only from it, what is of the kind and in the representation that
// is held. It is an error to list another namespace than the scope's.
func (h *Handle) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var options client.ListOptions
	options.ApplyOptions(opts)
	reader, err := h.reader(ctx, list, options.Namespace)
	if err != nil {
		return err
	}
	return reader.List(ctx, list, opts...)
}

// reader waits for the informer, as reads of the cache do.
func (h *Handle) reader(ctx context.Context, object runtime.Object, namespace string) (client.Reader, error) {
	asked, err := h.entry.cache.kindOf(object)
	switch {
	case err != nil:
		return nil, err
	case asked != h.entry.kind:
		return nil,
			errors.Errorf("the handle is of %s (%s), and not of %s (%s)", h.entry.kind.gvk, h.entry.kind.representation,
				asked.gvk, asked.representation)
	case namespace != "" && h.entry.scope.Namespace != "" && namespace != h.entry.scope.Namespace:
		return nil,
			errors.Errorf("the handle is of %s in namespace %q, and not in %q", h.entry.kind.gvk, h.entry.scope.Namespace,
				namespace)
	}
	select {
	case <-h.entry.gone:
		return nil, errors.Wrapf(ErrReleased, "reading %s", h.entry.kind.gvk)
	default:
	}
	running, err := h.entry.cache.awaitReading(ctx, h.entry)
	if err != nil {
		return nil, err
	}
	return running.cache, nil
}

// Feed is AddEventHandler for a handler that was fed by another cache before: known is what it has
// seen, and what of that is not there any more is delivered as deleted, once the informer has
// synced. It is for package internal/watches.
func (h *Handle) Feed(handler toolscache.ResourceEventHandler, options replay.Options) (*Feeding, error) {
	r, err := h.entry.add(handler, toolscache.HandlerOptions{}, options, nil)
	if err != nil {
		return nil, err
	}
	return &Feeding{registration: r}, nil
}

// Feeding is a handler that is fed.
type Feeding struct{ registration *registration }

// Known is what the handler knows of. It is told nothing any more.
func (f *Feeding) Known() replay.Known { return f.registration.feed.Known() }

// Remove ends it. A call of the handler that is under way goes on.
func (f *Feeding) Remove() { _ = f.registration.entry.remove(f.registration) } // it fails only for what client-go does not know
