package scopedcache

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// HoldOptions identify the holder of a scope.
type HoldOptions struct {
	// Dependent is the UID of the object that needs the scope. A second Hold of the same scope with
	// the same Name and Dependent returns the same handle. One Release ends that handle, and
	// OnStateChange of the second Hold is ignored. If Dependent is empty, each Hold returns a new
	// handle.
	Dependent types.UID
	// Name distinguishes several holders for the same dependent. Use the name of a controller, or
	// of a watch. ScopeState lists the names.
	Name string
	// OnStateChange, if not nil, is called when the state of the scope, or its LastError, changes.
	// Hold also calls OnStateChange with the current state, unless that is Syncing. Calls come from
	// any goroutine, but one at a time. OnStateChange must not block, and must not call the cache
	// or the handle, except for Release: a holder that may not read a kind can let go of it. No call
	// begins after that Release. A panic in OnStateChange ends the process.
	OnStateChange func(ScopeState)
}

// Handle keeps a scope alive. The handle reads what the scope selects. As an informer it stays
// valid while access is revoked or the kind is not served. The scope ends when its last handle is
// released, unless the scope is also read through the cache (see the package documentation), or
// used through GetInformer. The methods of Handle may be called from any goroutine.
type Handle struct {
	durableInformer
	entry   *entry
	options HoldOptions
	dead    atomic.Bool // the handle was released
}

var _ client.Reader = (*Handle)(nil)

// Hold implements Cache.
func (s *scopedCache) Hold(_ context.Context, object client.Object, scope Scope, options HoldOptions) (*Handle, error) {
	kind, err := s.env.kinds.kindOf(object)
	if err != nil {
		return nil, err
	}
	if scope.selectsNothing() {
		return nil,
			errors.Errorf("the scope of %s selects nothing (%s): an API server would return all objects", kind.gvk,
				scope)
	}
	s.entries.mu.Lock()
	if s.entries.ended || s.user.hasEnded() {
		s.entries.mu.Unlock()
		return nil, s.user.stopError()
	}
	e := s.entries.entryLocked(kind, scope, false)
	for _, handle := range e.handles {
		if options.Dependent != "" && handle.options.Dependent == options.Dependent &&
			handle.options.Name == options.Name && handle.user == s.user && !handle.dead.Load() {
			s.entries.mu.Unlock()
			return handle, nil
		}
	}
	handle := &Handle{durableInformer: durableInformer{user: s.user, entries: []*entry{e}}, entry: e, options: options}
	e.handles = append(e.handles, handle)
	s.entries.changed()
	s.entries.mu.Unlock()
	if options.OnStateChange != nil {
		if e.observe(handle, options.OnStateChange); handle.dead.Load() {
			e.unobserve(handle) // another holder of the same handle has released it
		}
	}
	return handle, nil
}

// Release ends the hold on the scope. Later calls have no effect. When the last handle of a scope
// is released, and nothing else needs the scope, the informer stops, and reads through any of the
// handles fail with ErrReleased. While other handles hold the scope, event handlers that were added
// through this handle still receive events: remove them first.
func (h *Handle) Release() {
	if h.dead.Swap(true) {
		return
	}
	h.entry.unobserve(h)
	entries := h.entry.entries
	entries.mu.Lock()
	defer entries.mu.Unlock()
	h.entry.handles = slices.DeleteFunc(h.entry.handles, func(other *Handle) bool { return other == h })
	entries.changed()
	entries.dropUnusedLocked(h.entry)
}

// State returns a snapshot of the scope.
func (h *Handle) State() ScopeState { return h.entry.snapshot() }

// Get reads an object from the scope. Another kind or representation than the handle's is an error.
// An object that the scope does not select is not found, whether the object exists or not.
func (h *Handle) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	reader, err := h.reader(ctx, object, key.Namespace)
	if err != nil {
		return err
	}
	return reader.Get(ctx, key, object, opts...)
}

// List reads objects from the scope, and only from it. Another kind or representation than the
// handle's is an error, and so is another namespace than the scope's.
func (h *Handle) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var options client.ListOptions
	options.ApplyOptions(opts)
	reader, err := h.reader(ctx, list, options.Namespace)
	if err != nil {
		return err
	}
	return reader.List(ctx, list, opts...)
}

// reader waits for the informer, as reads of the cache do, and returns a reader of its objects.
func (h *Handle) reader(ctx context.Context, object runtime.Object, namespace string) (client.Reader, error) {
	kind, err := h.entry.env.kinds.kindOf(object)
	held := h.entry.selection
	switch {
	case err != nil:
		return nil, err
	case kind != held.kind:
		return nil, errors.Errorf("the handle is of %s (%s), and not of %s (%s)", held.kind.gvk,
			held.kind.representation, kind.gvk, kind.representation)
	case namespace != "" && held.scope.Namespace != "" && namespace != held.scope.Namespace:
		return nil, errors.Errorf("the handle is of %s in namespace %q, and not in %q", held.kind.gvk,
			held.scope.Namespace, namespace)
	}
	if h.entry.gone.IsOpen() {
		return nil, errors.Wrapf(ErrReleased, "reading %s", held.kind.gvk)
	}
	running, err := h.user.awaitReading(ctx, h.entry)
	if err != nil {
		return nil, err
	}
	return running, nil
}
