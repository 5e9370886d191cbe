package scopedcache

import (
	"context"
	"maps"
	"slices"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/internal/term"
)

// NewUser returns a Cache of which other users have the same scopes: what one of them reads or
// holds is there for all of them at once. All must be the same identity: nothing is checked.
//
// The user has what it would have with a cache of its own. Its States are the scopes that it uses,
// with its own dependents. What it releases or removes goes on for others. When life ends, all that
// the user ever got fails for ever with the cause of that: handles, informers, reads that wait. Its
// event handlers get no more calls. ended is called after calls of them that were in progress have
// returned. onStateChange and onScopesChange are those of [Options], for the user's scopes.
//
// in is the term in which the user acts, nil for any time. What it reads has all that was written
// before the term began, and its handlers receive nothing older. That takes a list of metadata if
// there is an informer that was there before.
//
// The user cannot add indexes of fields: see errSharedIndex. The cache must outlive its users.
func (s *scopedCache) NewUser(life context.Context, in *term.Term, onStateChange func(State, ScopeState),
	onScopesChange, ended func()) Cache {
	user := newUser(s.env.options.ReadTimeout, onScopesChange, onStateChange)
	user.shares, user.since = true, term.Began(in)
	if in != nil {
		s.ListLatest()
	}
	view := &scopedCache{
		env:     s.env,
		entries: s.entries,
		user:    user,
		reader:  reader{env: s.env, entries: s.entries, user: user},
	}
	user.begin(life, func() {
		view.end()
		ended()
	})
	return view
}

// ListLatest makes the first list of each informer one of the latest state, which a list from the
// memory of an API server may not be: for a cache that a user in a term has alone.
func (s *scopedCache) ListLatest() { s.env.fresh.Store(true) }

// AllStates returns the states of the scopes of all users, each once, without dependents.
func (s *scopedCache) AllStates() (states []ScopeState) {
	s.entries.mu.Lock()
	entries := slices.Collect(maps.Keys(s.entries.entries))
	s.entries.mu.Unlock()
	for _, e := range entries {
		if !slices.ContainsFunc(e.usesNow(), (*use).isReported) {
			continue
		}
		state := e.snapshot()
		s.entries.mu.Lock()
		isHeld := len(e.handles) > 0
		s.entries.mu.Unlock()
		if !isHeld {
			state = e.asLive(state)
		}
		states = append(states, state)
	}
	return states
}

// errSharedIndex is why a user of a shared cache adds no index: another one may have added an index
// of that name that extracts something else.
var errSharedIndex = errors.New("the cache has other users: index the field with CacheOptions.Indexes, or with " +
	"IndexField before GetInformer")

// end ends all that the user has, and returns when no handler of the user's is called any more.
func (s *scopedCache) end() {
	handles, turns := s.handlesAndTurns()
	for _, handle := range handles {
		handle.Release()
	}
	var ended []*use
	s.entries.mu.Lock()
	for _, of := range s.user.allUses() {
		ended = append(ended, s.entries.endUseLocked(of))
	}
	s.entries.mu.Unlock()
	for _, of := range ended {
		of.finish()
	}
	s.entries.mu.Lock()
	turns = append(turns, s.user.left...) // of handlers that were removed while they were called
	s.entries.mu.Unlock()
	for _, turn := range turns {
		turn.Await()
	}
}

// leaveTurnLocked makes the end of a user wait for a handler that is removed, if it is called now.
// The caller holds entries.mu.
func (u *user) leaveTurnLocked(turn replay.Turn) {
	if !u.shares {
		return // the stop of the cache waits for its informers
	}
	u.left = slices.DeleteFunc(append(u.left, turn), replay.Turn.IsIdle)
}

// handlesAndTurns returns the user's handles, and the turns of its handlers.
func (s *scopedCache) handlesAndTurns() (handles []*Handle, turns []replay.Turn) {
	var sets []*namespaceSet
	s.entries.mu.Lock()
	uses := s.user.allUses() // those who hold mu have seen that the life has ended, or are among them
	for _, of := range uses {
		for _, handle := range of.entry.handles {
			if _, isScope := handle.held.(heldScope); isScope && handle.cache == s {
				handles = append(handles, handle)
			}
		}
	}
	for set := range s.entries.sets {
		if set.user == s.user {
			sets = append(sets, set)
		}
	}
	s.entries.mu.Unlock()
	for _, set := range sets {
		handles = append(handles, set.holder)
		set.mu.Lock()
		for _, h := range set.handlers {
			turns = append(turns, h.feeding.Turn)
		}
		set.mu.Unlock()
	}
	for _, of := range uses {
		for _, r := range of.entry.registrationsOf(of) {
			r.feed.Pause()
			turns = append(turns, r.feed.Turn())
		}
	}
	return handles, turns
}
