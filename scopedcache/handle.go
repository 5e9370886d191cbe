package scopedcache

import (
	"context"
	"slices"
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
	of      *scope
	options HoldOptions
	release func()
	dead    atomic.Bool // it was released
}

var _ client.Reader = (*Handle)(nil)

// Hold implements Cache.
func (s *scopedCache) Hold(_ context.Context, object client.Object, where Scope, options HoldOptions) (*Handle, error) {
	kind, err := s.kindOf(object)
	if err != nil {
		return nil, err
	}
	if where.selectsNothing() {
		return nil,
			errors.Errorf("the scope of %s selects nothing (%s): an API server would take that for everything", kind.gvk,
				where)
	}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil, s.stopError()
	}
	of := s.scopeLocked(kind, where)
	for handle := range of.handles {
		if options.Dependent != "" && handle.options.Dependent == options.Dependent && handle.options.Name == options.Name {
			s.mu.Unlock()
			return handle, nil
		}
	}
	handle := &Handle{durableInformer: durableInformer{scopes: []*scope{of}}, of: of, options: options}
	handle.release = sync.OnceFunc(func() {
		handle.dead.Store(true)
		of.unobserve(handle)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(of.handles, handle)
		s.dropUnusedLocked(of)
	})
	of.handles[handle] = struct{}{}
	s.mu.Unlock()
	if options.Observe != nil {
		if of.observe(handle, options.Observe); handle.dead.Load() {
			of.unobserve(handle) // somebody who got the same one has released it
		}
	}
	return handle, nil
}

// Release gives the scope back; it may be called again. With the last handle the informer stops,
// and reads through any of them fail with ErrReleased. Handlers that were added through this one
// are called on while others hold the scope: remove them before.
func (h *Handle) Release() { h.release() }

// State is a snapshot of the scope. It takes time in proportion to the objects.
func (h *Handle) State() ScopeState { return h.of.snapshot() }

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
	asked, err := h.of.cache.kindOf(object)
	switch {
	case err != nil:
		return nil, err
	case asked != h.of.kind:
		return nil,
			errors.Errorf("the handle is of %s (%s), and not of %s (%s)", h.of.kind.gvk, h.of.kind.representation,
				asked.gvk, asked.representation)
	case namespace != "" && h.of.where.Namespace != "" && namespace != h.of.where.Namespace:
		return nil,
			errors.Errorf("the handle is of %s in namespace %q, and not in %q", h.of.kind.gvk, h.of.where.Namespace,
				namespace)
	}
	select {
	case <-h.of.gone:
		return nil, errors.Wrapf(ErrReleased, "reading %s", h.of.kind.gvk)
	default:
	}
	running, err := h.of.cache.awaitReading(ctx, h.of)
	if err != nil {
		return nil, err
	}
	return running.cache, nil
}

// Feed is AddEventHandler for a handler that was fed by another cache before: known is what it has
// seen, and what of that is not there any more is delivered as deleted, once the informer has
// synced. It is for package internal/watches.
func (h *Handle) Feed(handler toolscache.ResourceEventHandler, options replay.Options) (*Feeding, error) {
	r, err := h.of.add(handler, toolscache.HandlerOptions{}, options, nil)
	if err != nil {
		return nil, err
	}
	return &Feeding{of: r}, nil
}

// Feeding is a handler that is fed.
type Feeding struct{ of *registration }

// Known is what the handler knows of. It is told nothing any more.
func (f *Feeding) Known() replay.Known { return f.of.feed.Known() }

// Remove ends it. A call of the handler that is under way goes on.
func (f *Feeding) Remove() { _ = f.of.scope.remove(f.of) } // it fails only for what client-go does not know

// dependents are who holds a scope, sorted.
func (s *scopedCache) dependents(of *scope) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for handle := range of.handles {
		name := handle.options.Name
		if dependent := string(handle.options.Dependent); dependent != "" && name != "" {
			name += " " + dependent
		} else if dependent != "" {
			name = dependent
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
