package scopedcache

import (
	"context"
	"slices"

	"github.com/pkg/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// heldScope is a scope with one informer that a handle holds.
type heldScope struct{ durableInformer }

var _ held = heldScope{}

func (s heldScope) use() *use     { return s.uses[0] }
func (s heldScope) entry() *entry { return s.use().entry }

func (s heldScope) observe(h *Handle) {
	if s.entry().observe(h, h.options.OnStateChange); h.dead.Load() {
		s.entry().unobserve(h) // the observer, or another holder of the same handle, has released it
	}
}

func (s heldScope) release(h *Handle) {
	s.entry().unobserve(h)
	s.entry().entries.letGo(s.use(), h)
}

func (s heldScope) state(*Handle) ScopeState { return s.use().snapshot() }

func (s heldScope) members(of func(*use) ScopeState) []ScopeState {
	return []ScopeState{of(s.use())}
}

func (s heldScope) reader(ctx context.Context, namespace string) (client.Reader, error) {
	e := s.entry()
	if own := e.selection.scope.Namespace; own != "" && namespace != "" && own != namespace {
		return nil, errors.Errorf("the handle is of %s in %s, and not in %q", e.selection.kind.gvk,
			e.selection.scope.place(), namespace)
	}
	running, err := s.use().awaitReading(ctx)
	if err != nil {
		return nil, err // not a nil informer in an interface
	}
	return running, nil
}

func (s heldScope) readers(ctx context.Context) ([]client.Reader, error) {
	reader, err := s.reader(ctx, "")
	return []client.Reader{reader}, err
}

// letGo ends what a handle needs of a scope.
func (s *entrySet) letGo(of *use, h *Handle) {
	e := of.entry
	s.mu.Lock()
	e.handles = slices.DeleteFunc(e.handles, func(other *Handle) bool { return other == h })
	s.holdersChangedLocked(of)
	ended := s.endUnusedLocked(of)
	s.mu.Unlock()
	ended.finish()
}
