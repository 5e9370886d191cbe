package scopedcache

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/pkg/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/latch"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/members"
)

// use is what one user has of a scope. It begins when the user first reads, holds or pins the
// scope, and ends when the user needs it no more, or with the user's life. The scope ends with its
// last use. A use that has ended never begins again: what was got through it fails.
type use struct {
	user  *user
	entry *entry
	gone  latch.Latch // opened under entries.mu when the use has ended
	ready atomic.Bool // what the scope has serves the user: see await
	asked atomic.Bool // access is reviewed because the user is new to a scope that is Forbidden

	// What keeps the use: see neededLocked.
	holds   int         // guarded by entries.mu: the number of the user's handles
	pinned  bool        // guarded by entries.mu: GetInformer returned the informer
	waiting int         // guarded by entries.mu: the number of the user's reads that wait
	recent  atomic.Bool // set by each read, cleared at each check for idleness
	// missed is when a read was refused last because of what the scope lacks, in Unix nanoseconds.
	missed    atomic.Int64
	tried     atomic.Bool // set under entries.mu: all holders are sets that try where they are allowed
	endedIdle bool        // set before gone is opened: ended because no one read it
	last      bool        // set before gone is opened: the scope ended with it
}

// useLocked returns what a user has of a scope, and begins it on first use. named says whether
// reads begin the scope for one name. The caller holds mu, and has checked that the user's life has
// not ended.
func (s *entrySet) useLocked(u *user, k *kind, scope Scope, named bool) *use {
	e, began := s.entryLocked(k, scope, named)
	if existing := u.use(e); existing != nil {
		return existing
	}
	begun := &use{user: u, entry: e}
	begun.ready.Store(began)
	e.uses = append(e.uses, begun)
	if e.named {
		u.named++
	}
	u.uses.Store(e, begun)
	if began {
		s.startLocked(e)
	}
	s.holdersChangedLocked(begun)
	return begun
}

// neededLocked reports whether the user needs the scope. The caller holds entries.mu.
func (u *use) neededLocked() bool {
	return u.holds > 0 || u.pinned || u.waiting > 0 || u.recent.Load()
}

// holdersChangedLocked records that the holders of a scope have changed: those of one user. The
// caller holds mu.
func (s *entrySet) holdersChangedLocked(of *use) {
	e, own := of.entry, 0
	tries := func(h *Handle) bool { return h.scope.Namespaces != nil && h.scope.Namespaces.kind == members.Allowed }
	tried := !of.pinned
	for _, h := range e.handles {
		if h.cache.user == of.user {
			own++
			tried = tried && tries(h)
		}
	}
	of.holds = own
	of.tried.Store(tried && own > 0)
	e.ofSet.Store(slices.ContainsFunc(e.handles, tries))
	of.user.changed()
}

// endUnusedLocked ends a use that is not needed any more. The caller holds mu, and calls finish of
// what is returned without it; nil if the use goes on.
func (s *entrySet) endUnusedLocked(of *use) *use {
	if of.neededLocked() {
		return nil
	}
	return s.endUseLocked(of)
}

// endUseLocked ends a use, and the scope with its last one. The caller holds mu, and calls finish
// of what is returned without it; nil if the use had ended before.
func (s *entrySet) endUseLocked(of *use) *use {
	e := of.entry
	if of.user.use(e) != of {
		return nil
	}
	of.user.uses.Delete(e)
	if e.named {
		of.user.named--
	}
	e.uses = slices.DeleteFunc(e.uses, func(other *use) bool { return other == of })
	if of.last = len(e.uses) == 0; of.last {
		s.dropLocked(e)
	}
	of.gone.Open()
	of.user.changed()
	return of
}

// finish ends what a use that has ended left at the scope, if the scope goes on for other users.
func (u *use) finish() {
	if u != nil && !u.last {
		u.entry.removeAll(u)
	}
}

// endIdle ends the uses of a scope that were not read since the last check for idleness, unless
// they are needed otherwise. endIdle reports whether the scope has ended.
func (s *entrySet) endIdle(e *entry) bool {
	s.mu.Lock()
	var ended []*use
	for _, of := range slices.Clone(e.uses) {
		if !of.recent.Swap(false) && !of.neededLocked() {
			of.endedIdle = true
			ended = append(ended, s.endUseLocked(of))
		}
	}
	_, exists := s.entries[e]
	s.mu.Unlock()
	for _, of := range ended {
		of.finish()
	}
	return !exists
}

// markRead records that a read uses the scope.
func (u *use) markRead() {
	if !u.recent.Load() { // usually set already; then avoid the write
		u.recent.Store(true)
	}
}

// onlyTried reports whether a read must not wait for the scope: the user's sets try whether it is
// allowed, and it has no objects.
func (u *use) onlyTried() bool { return u.tried.Load() && u.entry.current.Load() == nil }

// isTried reports whether the user needs the scope only for sets that try where they are allowed.
func (u *use) isTried() bool {
	return u.tried.Load() && u.entry.live.Load() == nil && !u.recent.Load()
}

// serving returns the informer that serves the user's reads, nil if none does now.
func (u *use) serving() *informer {
	if !u.ready.Load() {
		return nil
	}
	return u.entry.current.Load()
}

// await returns the informer that the user is to read from, or the reason why there is none. await
// waits until one of them is known. What a scope has that others use already serves a user who is
// new there as soon as the scope is Synced and fresh: one that fails may be old.
func (u *use) await(ctx context.Context) (*informer, error) {
	if running := u.serving(); running != nil {
		return running, nil
	}
	s := u.entry
	for {
		s.mu.Lock()
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		if s.state == StateSynced && u.isFreshLocked() {
			u.ready.Store(true)
		}
		running, state, lastError, changed := u.serving(), s.state, s.lastError, s.changed
		s.mu.Unlock()
		switch {
		case running != nil:
			return running, nil
		case state == StateForbidden:
			if !u.ready.Load() && !u.asked.Swap(true) {
				s.mail.accessMayHaveChanged() // a new cache would ask, too
			}
			return nil, lastError
		case state == StateNotServed:
			s.mail.markWanted()
			return nil, lastError
		case state == StateSynced:
			s.mail.wantFresh()
		}
		select {
		case <-changed:
		case <-u.gone.Done():
			return nil, u.endedError("waiting for the informer of")
		case <-u.user.stopped():
			return nil, u.user.stopError()
		case <-ctx.Done():
			return nil, u.notServed(context.Cause(ctx))
		}
	}
}

// awaitReading waits for the informer of the scope, for a read through a handle or an informer.
func (u *use) awaitReading(ctx context.Context) (*informer, error) {
	if err := u.check("reading"); err != nil {
		return nil, err
	}
	if running := u.serving(); running != nil {
		return running, nil
	}
	ctx, cancel := u.user.withReadTimeout(ctx)
	defer cancel()
	return u.await(ctx)
}

// isSettled reports whether the result of the user's read is known.
func (u *use) isSettled() bool {
	if !u.entry.settled.IsOpen() || u.user.since == 0 || u.ready.Load() {
		return u.entry.settled.IsOpen()
	}
	u.entry.mu.Lock()
	defer u.entry.mu.Unlock()
	return u.entry.state != StateSynced || u.isFreshLocked()
}

// awaitSettled waits until the result of the user's read is known.
func (u *use) awaitSettled(ctx context.Context) error {
	if u.isSettled() {
		return nil
	}
	select {
	case <-u.entry.settled.Done():
		for !u.isSettled() {
			if _, err := u.await(ctx); err != nil && (ctx.Err() != nil || u.check("waiting for the informer of") != nil) {
				return err
			}
		}
		return nil
	case <-u.gone.Done():
		return u.endedError("waiting for the informer of")
	case <-u.user.stopped():
		return u.user.stopError()
	case <-ctx.Done():
		return u.entry.notSynced(context.Cause(ctx))
	}
}

// check returns an error if nothing may be read through the use: the user's life has not begun or
// has ended, or the use has.
func (u *use) check(trying string) error {
	if err := u.user.check(); err != nil {
		return err
	}
	if u.gone.IsOpen() {
		return u.endedError(trying)
	}
	return nil
}

// endedError returns why what is tried after the end of the use fails.
func (u *use) endedError(trying string) error {
	if u.user.hasEnded() {
		return u.user.stopError()
	}
	return errors.Wrapf(ErrReleased, "%s %s", trying, u.entry.selection.kind.gvk)
}

// reader returns a reader of what the scope has, which may be none.
func (u *use) reader(ctx context.Context) (client.Reader, error) {
	running, err := u.await(ctx)
	if err != nil {
		return nil, err // not a nil informer in an interface
	}
	return running, nil
}

// dependents returns the user's holders of the scope, sorted.
func (u *use) dependents() (names []string) {
	s := u.entry.entries
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, handle := range u.entry.handles {
		if handle.cache.user == u.user {
			names = append(names, handle.options.holder())
		}
	}
	slices.Sort(names)
	return names
}

// snapshot returns the state of the scope as the user may see it.
func (u *use) snapshot() ScopeState {
	if u.gone.IsOpen() && u.user.hasEnded() {
		return endedState(u.entry.selection.kind, u.entry.selection.scope, u.user.stopError())
	}
	snapshot := u.entry.snapshot()
	snapshot.Dependents = u.dependents()
	snapshot.Missed = u.isMissed(snapshot)
	return snapshot
}

// snapshotOfState returns the state as OnStateChange receives it: without objects and dependents.
func (u *use) snapshotOfState() ScopeState { return u.entry.snapshotOfState() }

// isReported reports whether the scope is one of the user's States. What sets only try is not, nor
// is the scope of all namespaces while they have others.
func (u *use) isReported() bool {
	if !u.isTried() {
		return true
	}
	s := u.entry
	if s.selection.scope.Namespace != members.All {
		return !s.isDenied()
	}
	s.mu.Lock()
	forbidden := s.state == StateForbidden
	s.mu.Unlock()
	if !forbidden {
		return true
	}
	s.entries.mu.Lock()
	handles := slices.Clone(s.handles)
	s.entries.mu.Unlock()
	return slices.ContainsFunc(handles, func(h *Handle) bool {
		set, ok := h.held.(*namespaceSet)
		return h.cache.user == u.user && (!ok || len(set.membersNow()) == 0)
	})
}

// states returns the states of the user's scopes, in no particular order.
func (u *user) states() []ScopeState {
	uses := u.allUses()
	states := make([]ScopeState, 0, len(uses))
	for _, of := range uses {
		if of.isReported() {
			states = append(states, of.entry.asLive(of.snapshot()))
		}
	}
	return states
}

// use returns what the user has of a scope, nil for nothing.
func (u *user) use(e *entry) *use {
	if of, ok := u.uses.Load(e); ok {
		return of.(*use)
	}
	return nil
}

// allUses returns what the user has of all scopes.
func (u *user) allUses() (all []*use) {
	u.uses.Range(func(_, of any) bool {
		all = append(all, of.(*use))
		return true
	})
	return all
}
