package accessor

import (
	"fmt"
	"strings"
	"time"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/degraded"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// MuteAnnotation is an annotation of extensions: reasons for which it does not count as degraded.
const MuteAnnotation = "latchkey.dev/mute"

// mutedHereLocked returns the extension's own MuteAnnotation. The caller holds mu.
func (a *identityAccessor) mutedHereLocked() string {
	if a.set.options.IgnoreMuteAnnotation {
		return ""
	}
	return a.object.GetAnnotations()[MuteAnnotation]
}

// problemsChanged reports whether the problems are others than at its last call. Only the goroutine
// that looks at all accessors calls it. Some problems end by time, without an event.
func (a *identityAccessor) problemsChanged() bool {
	if !a.hadProblems.Load() && !a.wasRefused() {
		return false
	}
	a.hadProblems.Store(false)
	var now strings.Builder
	for _, p := range a.problems() {
		fmt.Fprintf(&now, "%s %t %d %s\n", p.Reason, p.Muted, p.Since.UnixNano(), p.Message)
	}
	if now.String() == a.seenProblems {
		return false
	}
	a.seenProblems = now.String()
	return true
}

// wasRefused reports whether a request of a controller was refused lately.
func (a *identityAccessor) wasRefused() bool {
	conn := a.published.Load().conn
	return conn != nil && len(conn.RefusedLately(time.Now())) > 0
}

// problems returns what keeps the extension from its work although it is connected.
func (a *identityAccessor) problems() []degraded.Problem {
	a.mu.Lock()
	state, conn, mutedHere := a.stateLocked(), a.conn, a.mutedHereLocked()
	a.mu.Unlock()
	if conn == nil {
		return nil
	}
	state.Scopes = conn.UnsortedScopes()
	return a.problemsOf(&state, conn, mutedHere)
}

// problemsOf returns what keeps the extension from its work, in a state with scopes.
func (a *identityAccessor) problemsOf(state *State, conn *connection.Connection, mutedHere string) []degraded.Problem {
	if state.Phase != connstate.PhaseConnected {
		return nil
	}
	facts := degraded.Facts{Muted: a.set.options.Muted, MutedHere: mutedHere}
	if !state.Healthy {
		facts.Probe = []degraded.Fault{{Why: connstate.ErrorText(state.Health.LastError), Since: state.HealthSince}}
	}
	if state.Err != nil {
		facts.Credential = []degraded.Fault{{Why: connstate.ErrorText(state.Err), Since: state.ErrSince}}
	}
	AddScopes(&facts, state.Scopes)
	for _, one := range conn.RefusedLately(time.Now()) {
		facts.Refused = append(facts.Refused, degraded.Fault{What: "may not " + one.String(), Since: one.Since})
	}
	problems := degraded.Problems(facts)
	if len(problems) > 0 {
		a.hadProblems.Store(true)
	}
	return problems
}

// AddScopes adds the scopes of a connection's cache that do not have what something needs. Scopes
// that are only tried, by sets of namespaces or on the way to one that serves a read, are not
// missed, and kinds that are read live are as they should be.
func AddScopes(facts *degraded.Facts, scopes []scopedcache.ScopeState) {
	for n := range scopes {
		scope := &scopes[n]
		var faults *[]degraded.Fault
		switch scope.State {
		case scopedcache.StateFailing:
			faults = &facts.Failing
		case scopedcache.StateForbidden:
			faults = &facts.Forbidden
		case scopedcache.StateNotServed:
			faults = &facts.NotServed
		default:
			continue
		}
		if scope.State != scopedcache.StateFailing && !scope.Missed {
			continue
		}
		what := scope.GVK.GroupKind().String()
		if where := scope.Scope.String(); where != "" {
			what += " in " + where
		}
		*faults = append(*faults, degraded.Fault{
			What:  what,
			Why:   connstate.ErrorText(scope.LastError),
			Since: scope.Since,
		})
	}
}
