package scopedcache

import (
	"slices"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// setState records a state and notifies the observers.
func (s *entry) setState(e monitor.SetState) {
	state, err := State(e.State), e.Err
	if state == StateNotServed && !meta.IsNoMatchError(err) {
		// The 404 of a list must not look as if one object did not exist.
		err = errors.WithMessage(&meta.NoKindMatchError{
			GroupKind:        s.selection.kind.gvk.GroupKind(),
			SearchedVersions: []string{s.selection.kind.gvk.Version},
		}, errorText(err))
	}
	s.notifyMu.Lock()
	defer s.notifyMu.Unlock()
	s.mu.Lock()
	if state.settled() {
		s.settleLocked()
	}
	if state != StateForbidden {
		s.live.Store(nil)
	}
	s.served = s.served || state == StateSynced
	s.state, s.since, s.lastError = state, e.Since, err
	s.changedLocked()
	observers := slices.Clone(s.observers)
	now := s.snapshotLocked()
	s.mu.Unlock()
	for _, o := range observers {
		if !o.handle.dead.Load() { // an observer may have released the next one's handle
			o.observe(now)
		}
	}
	shown, denied := false, s.isDenied()
	for _, of := range s.usesNow() {
		if !denied || !of.isTried() { // else nothing that a person must see
			shown = true
			of.user.stateChanged(State(e.Before), now)
		}
		of.user.changed()
	}
	if shown {
		logChange(s.env.options.Logger, State(e.Before), now)
	}
}

// changedLocked wakes those who wait for the informer. The caller holds mu.
func (s *entry) changedLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// usesNow returns the uses of the scope.
func (s *entry) usesNow() []*use {
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	return slices.Clone(s.uses)
}

// isTried reports whether nothing needs the scope but sets that try where they are allowed.
func (s *entry) isTried() bool {
	return !slices.ContainsFunc(s.usesNow(), func(of *use) bool { return !of.isTried() })
}

// settleLocked records that the result of a read is known. While an informer serves reads, its
// handlers settle later, when they have received all objects. The caller holds mu.
func (s *entry) settleLocked() {
	s.settled.Open()
	if s.current.Load() == nil { // there are no objects to deliver
		for _, r := range s.registrations {
			r.settle()
		}
	}
}

// observer is called when the state of an entry changes, until its handle is released.
type observer struct {
	handle  *Handle
	observe func(ScopeState)
}

// observe adds an observer, and notifies it of the current state unless that is Syncing.
func (s *entry) observe(handle *Handle, observe func(ScopeState)) {
	s.notifyMu.Lock()
	defer s.notifyMu.Unlock()
	s.mu.Lock()
	s.observers = append(s.observers, observer{handle, observe})
	snapshot := s.snapshotLocked()
	s.mu.Unlock()
	if snapshot.State != StateSyncing {
		observe(snapshot)
	}
}

func (s *entry) unobserve(handle *Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observers = slices.DeleteFunc(s.observers, func(o observer) bool { return o.handle == handle })
}

// snapshot returns the state, without dependents.
func (s *entry) snapshot() ScopeState {
	s.mu.Lock()
	snapshot := s.snapshotLocked()
	running := s.running
	s.mu.Unlock()
	if running != nil {
		snapshot.Objects = running.objects()
	}
	return snapshot
}

// endedState returns the state of a scope for a user whose life has ended: what becomes of the
// scope is not theirs to know.
func endedState(k *kind, scope Scope, reason error) ScopeState {
	return ScopeState{
		GVK:            k.gvk,
		Representation: k.representation,
		Scope:          scope,
		State:          StateFailing,
		LastError:      reason,
	}
}

// snapshotOfState returns the state as OnStateChange receives it: without objects and dependents.
func (s *entry) snapshotOfState() ScopeState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshotLocked()
}

func (s *entry) snapshotLocked() ScopeState {
	return ScopeState{
		GVK:            s.selection.kind.gvk,
		Representation: s.selection.kind.representation,
		Scope:          s.selection.scope,
		State:          s.state,
		Since:          s.since,
		LastError:      s.lastError,
	}
}

// logChange logs the changes that a person must see: a scope cannot be read, or can be read again.
func logChange(logger logr.Logger, before State, now ScopeState) {
	verbosity := 0
	switch {
	case now.State == before:
		return // the state is the same as before the failure
	case now.State == StateFailing:
		verbosity = 1
	case now.State == StateSyncing, now.State == StateSynced && before == StateSyncing:
		return
	}
	reason := []any{}
	if now.LastError != nil {
		reason = []any{"error", untrusted.Shorten(now.LastError.Error())}
	}
	logger.V(verbosity).Info("Informer state changed",
		append([]any{"kind", now.GVK, "scope", now.Scope.String(), "state", now.State}, reason...)...)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
