package accessor

import (
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
	if a.object == nil {
		return ""
	}
	return a.object.GetAnnotations()[MuteAnnotation]
}

// problems returns what keeps the extension from its work although it is connected.
func (a *identityAccessor) problems() []degraded.Problem {
	a.mu.Lock()
	state, conn, mutedHere := a.stateLocked(), a.conn, a.mutedHereLocked()
	a.mu.Unlock()
	if conn == nil {
		return nil
	}
	state.Scopes = conn.Scopes()
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
	return degraded.Problems(facts)
}

// AddScopes adds the scopes of a connection's cache that do not have what they should. Members of
// sets that only try where the identity is permitted are not among the scopes, and kinds that are
// read live are as they should be.
func AddScopes(facts *degraded.Facts, scopes []scopedcache.ScopeState) {
	for _, scope := range scopes {
		fault := degraded.Fault{
			What:  scope.GVK.GroupKind().String(),
			Why:   connstate.ErrorText(scope.LastError),
			Since: scope.Since,
		}
		if where := scope.Scope.String(); where != "" {
			fault.What += " in " + where
		}
		switch scope.State {
		case scopedcache.StateFailing:
			facts.Failing = append(facts.Failing, fault)
		case scopedcache.StateForbidden:
			facts.Forbidden = append(facts.Forbidden, fault)
		case scopedcache.StateNotServed:
			facts.NotServed = append(facts.NotServed, fault)
		}
	}
}
