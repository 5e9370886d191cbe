package watches

import (
	"fmt"
	"slices"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// reports are what OnError of a watch has received, and is to receive.
type reports struct {
	// The last states that OnError received, and the next ones. A set of namespaces has one, and each
	// of its members, too.
	reported, pending []scopedcache.ScopeState // guarded by watch.mu
	reportedBy        int64                    // guarded by watch.mu; the epoch of the connection of the latest state
	reporter          Connection               // guarded by watch.mu; the connection whose goroutine calls OnError
}

// observer returns the function that Hold calls with the informer's state, nil without OnError.
func (w *watch) observer(conn Connection) func(scopedcache.ScopeState) {
	if w.reg.onError == nil {
		return nil
	}
	return func(state scopedcache.ScopeState) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.ended || conn.Err() != nil || w.reporter != nil && w.reporter.Epoch() > conn.Epoch() {
			return
		}
		if w.reportedBy != conn.Epoch() {
			w.reportedBy, w.pending = conn.Epoch(), nil // what is pending is of an earlier connection
			w.leaveAllLocked()
		}
		w.pending = put(w.pending, w.named(state))
		if w.reporter != conn {
			w.reporter = conn
			conn.Go(func() { w.reportAll(conn) })
		}
	}
}

// named returns the state of the whole watch with the scope that was requested: the options of a
// connection's cache may name namespaces for a watch of all.
func (w *watch) named(state scopedcache.ScopeState) scopedcache.ScopeState {
	if state.Scope.Namespaces != nil || state.Scope.Namespace == "" {
		state.Scope = w.scope
	}
	return state
}

// leaveAllLocked reports that the namespaces with an error have left, if the next connection may
// have others. Those that it still has are reported again. The caller holds mu.
func (w *watch) leaveAllLocked() {
	if w.scope.Namespaces.Names() != nil {
		return
	}
	for _, state := range w.reported {
		if !state.Scope.Equal(w.scope) {
			state.State = scopedcache.StateLeft
			w.pending = put(w.pending, state)
		}
	}
}

// reportAll calls OnError with the latest state, until no state is pending.
func (w *watch) reportAll(conn Connection) {
	for {
		state, news := w.nextReport(conn)
		if state == nil {
			return
		}
		if news {
			w.report(conn, *state)
		}
	}
}

// report calls OnError.
func (w *watch) report(conn Connection, state scopedcache.ScopeState) {
	w.call(conn, nil, func() {
		w.reg.onError(withHandlerMark(conn.Life()), WatchError{
			Extension: w.reg.registry.Extension,
			Name:      w.reg.name,
			Kind:      w.part.Value().kind,
			Scope:     state.Scope,
			Identity:  conn.Identity(),
			State:     state.State,
			Err:       errorOf(state),
		})
	})
}

// errorOf returns why the state is what it is.
func errorOf(state scopedcache.ScopeState) error {
	if state.State == scopedcache.StateLeft {
		return nil
	}
	return state.LastError
}

// nextReport takes a pending state, nil if the goroutine of conn has nothing more to report. news
// is false for an unchanged state, and for a first state without an error.
func (w *watch) nextReport(conn Connection) (state *scopedcache.ScopeState, news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) == 0 || w.reporter != conn || w.ended || conn.Err() != nil {
		if w.reporter == conn {
			w.reporter = nil
		}
		return nil, false
	}
	next := w.pending[0]
	state, w.pending = &next, w.pending[1:]
	before := scopedcache.ScopeState{}
	if at := indexOf(w.reported, state.Scope); at >= 0 {
		before = w.reported[at]
	}
	if state.State == scopedcache.StateLeft { // of interest to a caller that knows of an error there
		w.reported = slices.DeleteFunc(w.reported, func(s scopedcache.ScopeState) bool { return s.Scope.Equal(state.Scope) })
		return state, before.LastError != nil
	}
	w.reported = put(w.reported, *state)
	news = state.State != before.State || fmt.Sprint(state.LastError) != fmt.Sprint(before.LastError)
	return state, news && (before.State != "" || state.LastError != nil)
}

// indexOf returns where the state of a scope is, -1 if there is none.
func indexOf(states []scopedcache.ScopeState, scope scopedcache.Scope) int {
	return slices.IndexFunc(states, func(s scopedcache.ScopeState) bool {
		return s.Scope.Namespace == scope.Namespace && s.Scope.Equal(scope)
	})
}

// put replaces the state of a scope, or adds it.
func put(states []scopedcache.ScopeState, state scopedcache.ScopeState) []scopedcache.ScopeState {
	if at := indexOf(states, state.Scope); at >= 0 {
		states[at] = state
		return states
	}
	return append(states, state)
}
