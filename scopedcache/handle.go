package scopedcache

import (
	"context"
	"sync/atomic"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/members"
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
	// Scope.Namespaces. When a namespace has left the set, it receives [StateLeft]. Calls come from
	// any goroutine, but one at a time. OnStateChange must not block, and must not call the cache or
	// the handle, except for Release: a holder that may not read a kind can let go of it. No call
	// begins after that Release. A panic in OnStateChange ends the process.
	OnStateChange func(ScopeState)
}

// Handle keeps a scope alive. The handle reads what the scope selects. As an informer it stays
// valid while access is revoked or the kind is not served. The scope ends when its last handle is
// released, unless the scope is also read through the cache (see the package documentation), or
// used through GetInformer. The methods of Handle may be called from any goroutine.
type Handle struct {
	held
	cache   *scopedCache
	kind    *kind
	scope   Scope
	options HoldOptions
	dead    atomic.Bool // the handle was released
}

var _ client.Reader = (*Handle)(nil)

// held is what a handle holds: a scope, or a set of scopes.
type held interface {
	Informer
	// observe calls the handle's OnStateChange, now and later.
	observe(h *Handle)
	release(h *Handle)
	state(h *Handle) ScopeState
	members(of func(*use) ScopeState) []ScopeState
	// reader waits for the informer of a namespace, as reads of the cache do, and returns a reader of
	// its objects.
	reader(ctx context.Context, namespace string) (client.Reader, error)
	// readers is reader for all namespaces.
	readers(ctx context.Context) ([]client.Reader, error)
}

// Hold implements Cache.
func (s *scopedCache) Hold(_ context.Context, object client.Object, scope Scope, options HoldOptions) (*Handle, error) {
	kind, err := s.env.kinds.kindOf(object)
	if err != nil {
		return nil, err
	}
	if _, err := scope.Members(); err != nil {
		return nil, errors.WithMessagef(err, "holding %s", kind.gvk)
	}
	if scope.Namespaces != nil {
		return s.holdSet(kind, scope, options)
	}
	return s.holdScope(kind, scope, options)
}

// holdScope is Hold for a scope with one informer.
func (s *scopedCache) holdScope(kind *kind, scope Scope, options HoldOptions) (*Handle, error) {
	s.entries.mu.Lock()
	if err := s.overLocked(); err != nil {
		s.entries.mu.Unlock()
		return nil, err
	}
	of := s.entries.useLocked(s.user, kind, scope, false)
	e := of.entry
	for _, other := range e.handles {
		if other.isFor(s, scope, options) {
			s.entries.mu.Unlock()
			return other, nil
		}
	}
	handle := &Handle{
		held:    heldScope{durableInformer{uses: []*use{of}}},
		cache:   s,
		kind:    kind,
		scope:   scope,
		options: options,
	}
	e.handles = append(e.handles, handle)
	s.entries.holdersChangedLocked(of)
	s.entries.mu.Unlock()
	if options.OnStateChange != nil {
		handle.observe(handle)
	}
	return handle, nil
}

// holdSet is Hold for a set of namespaces.
func (s *scopedCache) holdSet(kind *kind, scope Scope, options HoldOptions) (*Handle, error) {
	if scope.Namespaces.kind == members.Allowed && len(kind.config.namespaces) > 0 {
		return nil, errors.Errorf("holding %s: the cache's options name namespaces for the kind, so that one informer of "+
			"all would have other objects than those of each: use InNamespaces or NamespacesWithLabels", kind.gvk)
	}
	s.entries.mu.Lock()
	if err := s.overLocked(); err != nil {
		s.entries.mu.Unlock()
		return nil, err
	}
	for set := range s.entries.sets {
		if set.kind == kind && set.holder.isFor(s, scope, options) {
			s.entries.mu.Unlock()
			return set.holder, nil
		}
	}
	handle := &Handle{cache: s, kind: kind, scope: scope, options: options}
	set := newNamespaceSet(s, kind, scope, handle)
	handle.held = set
	s.entries.sets[set] = struct{}{}
	s.entries.mu.Unlock()
	source, err := s.sourceOf(set)
	if err != nil {
		handle.Release()
		return nil, err
	}
	set.begin(source)
	return handle, nil
}

// overLocked returns an error if the cache has stopped. The caller holds entries.mu.
func (s *scopedCache) overLocked() error {
	if s.entries.ended || s.user.hasEnded() {
		return s.user.stopError()
	}
	return nil
}

// isFor reports whether a Hold with these arguments returns the handle again.
func (h *Handle) isFor(s *scopedCache, scope Scope, options HoldOptions) bool {
	return options.Dependent != "" && h.options.Dependent == options.Dependent && h.options.Name == options.Name &&
		h.cache == s && h.scope.Equal(scope) && !h.dead.Load()
}

// Release ends the hold on the scope. Later calls have no effect. When the last handle of a scope
// is released, and nothing else needs the scope, the informer stops, and reads through any of the
// handles fail with ErrReleased. While other handles hold the scope, event handlers that were added
// through this handle still receive events: remove them first. Event handlers of a set of
// namespaces receive nothing after Release.
func (h *Handle) Release() {
	if !h.dead.Swap(true) {
		h.release(h)
	}
}

// State returns a snapshot of the scope. That of a set of namespaces sums up its members.
func (h *Handle) State() ScopeState { return h.state(h) }

// Members returns the states of the scopes that reads of the handle use, sorted by namespace. For a
// set of namespaces, these are one for each namespace that is in it now, or a single one without a
// namespace while one informer has all namespaces; else the scope's own. A namespace that
// [WhereverAllowed] only tries is none of them.
func (h *Handle) Members() []ScopeState { return h.members((*use).snapshot) }

// Get reads an object from the scope. Another kind or representation than the handle's is an error.
// An object that the scope does not select is not found, whether the object exists or not. So is an
// object in a namespace that is not in a set of [NamespacesWithLabels]; with [InNamespaces] that is
// an error, and with [WhereverAllowed] it is Forbidden.
func (h *Handle) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if err := h.check(object); err != nil {
		return err
	}
	reader, err := h.reader(ctx, key.Namespace)
	if err != nil {
		return err
	}
	return reader.Get(ctx, key, object, opts...)
}

// List reads objects from the scope, and only from it. Another kind or representation than the
// handle's is an error, and so is another namespace than the scope's, with the exceptions of Get.
//
// Without a namespace, List of a set of namespaces reads all of them: a part of the objects is
// never a surprise. List returns a [PartialError] if one cannot be read, if it is not known now
// which namespaces are in the set, or if MaxNamespaces leaves some out. So with [WhereverAllowed],
// List fails while a namespace whose permission was revoked is in the set. For what can be read,
// list with client.InNamespace each of Members that is Synced.
func (h *Handle) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var options client.ListOptions
	options.ApplyOptions(opts)
	if err := h.check(list); err != nil {
		return err
	}
	if options.Namespace != "" {
		reader, err := h.reader(ctx, options.Namespace)
		if err != nil {
			return err
		}
		return reader.List(ctx, list, opts...)
	}
	readers, err := h.readers(ctx)
	if err != nil {
		return err
	}
	if len(readers) == 1 {
		return readers[0].List(ctx, list, opts...)
	}
	parts := make([]listPart, len(readers))
	for i, reader := range readers {
		parts[i] = func(list client.ObjectList, options *client.ListOptions) error {
			return reader.List(ctx, list, options)
		}
	}
	return listAll(parts, list, options)
}

// check returns an error for an object of another kind or representation than the handle's.
func (h *Handle) check(object runtime.Object) error {
	kind, err := h.cache.env.kinds.kindOf(object)
	if err != nil {
		return err
	}
	if held := h.kind; kind != held {
		return errors.Errorf("the handle is of %s (%s), and not of %s (%s)", held.gvk, held.representation, kind.gvk,
			kind.representation)
	}
	return nil
}
