package scopedcache

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
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
	// Hold also calls OnStateChange with the current state, unless that is Syncing. With a set of
	// namespaces it receives the states of each, with Scope.Namespace, and those of the set, with
	// Scope.Namespaces. Calls come from
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
	durableInformer // of the scope, or of the members of its set of namespaces
	scope           Scope
	options         HoldOptions
	dead            atomic.Bool // the handle was released
}

var _ client.Reader = (*Handle)(nil)

// Hold implements Cache.
func (s *scopedCache) Hold(_ context.Context, object client.Object, scope Scope, options HoldOptions) (*Handle, error) {
	kind, err := s.env.kinds.kindOf(object)
	if err != nil {
		return nil, err
	}
	members, err := scope.Members()
	if err != nil {
		return nil, errors.WithMessagef(err, "holding %s", kind.gvk)
	}
	s.entries.mu.Lock()
	if s.entries.ended || s.user.hasEnded() {
		s.entries.mu.Unlock()
		return nil, s.user.stopError()
	}
	handle := &Handle{durableInformer: durableInformer{user: s.user}, scope: scope, options: options}
	for _, member := range members {
		e := s.entries.entryLocked(kind, member, false)
		if existing := handle.existingLocked(e); existing != nil { // then the first member has it, too
			s.entries.mu.Unlock()
			return existing, nil
		}
		handle.entries = append(handle.entries, e)
	}
	for _, e := range handle.entries {
		e.handles = append(e.handles, handle)
	}
	s.entries.changed()
	s.entries.mu.Unlock()
	if options.OnStateChange != nil {
		handle.observe()
	}
	return handle, nil
}

// existingLocked returns the handle that another Hold with the same dependent has returned, nil for
// none. The caller holds entries.mu.
func (h *Handle) existingLocked(e *entry) *Handle {
	if h.options.Dependent == "" {
		return nil
	}
	for _, other := range e.handles {
		if other.options.Dependent == h.options.Dependent && other.options.Name == h.options.Name &&
			other.user == h.user && other.scope.Equal(h.scope) && !other.dead.Load() {
			return other
		}
	}
	return nil
}

// observe calls OnStateChange with the states of the scope.
func (h *Handle) observe() {
	observe := h.options.OnStateChange
	if h.scope.Namespaces != nil {
		observe = (&setObserver{handle: h, observe: observe}).member
	}
	for _, e := range h.entries {
		if e.observe(h, observe); h.dead.Load() {
			e.unobserve(h) // the observer, or another holder of the same handle, has released it
		}
	}
}

// Release ends the hold on the scope. Later calls have no effect. When the last handle of a scope
// is released, and nothing else needs the scope, the informer stops, and reads through any of the
// handles fail with ErrReleased. While other handles hold the scope, event handlers that were added
// through this handle still receive events: remove them first.
func (h *Handle) Release() {
	if h.dead.Swap(true) {
		return
	}
	for _, e := range h.entries {
		e.unobserve(h)
	}
	set := h.entries[0].entries
	set.mu.Lock()
	defer set.mu.Unlock()
	for _, e := range h.entries {
		e.handles = slices.DeleteFunc(e.handles, func(other *Handle) bool { return other == h })
	}
	set.changed()
	for _, e := range h.entries {
		set.dropUnusedLocked(e)
	}
}

// State returns a snapshot of the scope. That of a set of namespaces sums up its members, which
// States of [Cache] has.
func (h *Handle) State() ScopeState {
	if h.scope.Namespaces == nil {
		return h.entries[0].snapshot()
	}
	summary := h.summary((*entry).snapshot)
	summary.Dependents = []string{h.options.holder()}
	return summary
}

// summary returns the state of a set of namespaces.
func (h *Handle) summary(of func(*entry) ScopeState) ScopeState {
	members := make([]ScopeState, len(h.entries))
	for i, e := range h.entries {
		members[i] = of(e)
	}
	return Summarize(h.scope, members)
}

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
// handle's is an error, and so is another namespace than the scope's. Without a namespace, List of
// a set of namespaces reads all of them, and returns a [PartialError] if one cannot be read: a part
// of the objects is never a surprise.
func (h *Handle) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var options client.ListOptions
	options.ApplyOptions(opts)
	if h.scope.Namespaces != nil && options.Namespace == "" {
		return h.listAll(ctx, list, options)
	}
	reader, err := h.reader(ctx, list, options.Namespace)
	if err != nil {
		return err
	}
	return reader.List(ctx, list, opts...)
}

// listAll lists all namespaces of a set, until the limit is reached.
func (h *Handle) listAll(ctx context.Context, list client.ObjectList, options client.ListOptions) error {
	ctx, cancel := h.user.withReadTimeout(ctx) // for all together
	defer cancel()
	var parts []listPart
	problem := &PartialError{Of: len(h.entries)}
	for _, e := range h.entries {
		reader, err := h.reader(ctx, list, e.selection.scope.Namespace)
		if err != nil && !isUnreadable(err) {
			return err
		}
		if err != nil {
			member := e.snapshotOfState()
			member.LastError = err
			problem.Members = append(problem.Members, member)
			continue
		}
		parts = append(parts, func(list client.ObjectList, options *client.ListOptions) error {
			return reader.List(ctx, list, options)
		})
	}
	if len(problem.Members) > 0 {
		return problem
	}
	return listAll(parts, list, options)
}

// isUnreadable reports whether an error is about the scope, and not about the read.
func isUnreadable(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsTimeout(err) || meta.IsNoMatchError(err)
}

// reader waits for the informer, as reads of the cache do, and returns a reader of its objects.
func (h *Handle) reader(ctx context.Context, object runtime.Object, namespace string) (client.Reader, error) {
	kind, err := h.entries[0].env.kinds.kindOf(object)
	if err != nil {
		return nil, err
	}
	held := h.entries[0].selection.kind
	if kind != held {
		return nil, errors.Errorf("the handle is of %s (%s), and not of %s (%s)", held.gvk, held.representation, kind.gvk,
			kind.representation)
	}
	of := slices.IndexFunc(h.entries, func(e *entry) bool {
		own := e.selection.scope.Namespace
		return own == namespace || h.scope.Namespaces == nil && (own == "" || namespace == "")
	})
	if of < 0 {
		return nil, errors.Errorf("the handle is of %s in %s, and not in %q", held.gvk, h.scope.place(), namespace)
	}
	e := h.entries[of]
	if e.gone.IsOpen() {
		return nil, errors.Wrapf(ErrReleased, "reading %s", held.gvk)
	}
	running, err := h.user.awaitReading(ctx, e)
	if err != nil {
		return nil, err
	}
	return running, nil
}
