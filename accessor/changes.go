package accessor

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// comparedState is what subscribers must know of, as far as the accessor itself determines it.
type comparedState struct {
	Snapshot            // without errors, and without what changes all the time
	uid                 types.UID
	message, probeError string
	target              string
	tokenExpires        time.Time
	mutedHere           string
}

// compared returns what subscribers must know of the state.
func (s *State) compared() comparedState {
	c := comparedState{
		Snapshot:     s.Snapshot,
		uid:          s.UID,
		message:      connstate.ErrorText(s.Err),
		probeError:   connstate.ErrorText(s.Health.LastError),
		target:       s.Target,
		tokenExpires: s.TokenExpires,
	}
	c.Health = connstate.Health{ConsecutiveFailures: s.Health.ConsecutiveFailures}
	c.Err, c.LastSuccess, c.Proven, c.Credential = nil, time.Time{}, false, 0
	return c
}

// reportIfChangedLocked reports a change of the state to the subscribers, if there are any.
func (a *identityAccessor) reportIfChangedLocked() {
	if !a.set.options.States.HasSubscribers() {
		return // the first call of a new subscriber names all extensions
	}
	state := a.stateLocked()
	now := state.compared()
	now.mutedHere = a.mutedHereLocked()
	if a.compared == nil || now != *a.compared {
		a.compared = &now
		a.reportChange()
	}
}

// reportChange reports to the subscribers that the state has changed. It may be called with locks
// held.
func (a *identityAccessor) reportChange() { a.set.options.States.Changed(a.key) }

// reportUnseenChanges reports the changes that come without a step: a served request ends a series
// of failed probes, one member's probe fails for all members of a target, a token is renewed, and
// requests are refused, or were refused long ago.
func (s *Set) reportUnseenChanges() {
	s.each(func(a *identityAccessor) {
		if a.look() {
			a.step(lifecycle.Looked{}, eventPayload{}) // which reports
		}
		if s.options.States.HasSubscribers() && a.problemsChanged() {
			a.reportChange()
		}
	})
}

// look reports what has changed, unless a step does: that of the machine, if it is healthy now and
// was not before, or the other way around.
func (a *identityAccessor) look() (healthChanged bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.machine.HealthChanged(time.Now(), a.observedLocked()) {
		return true
	}
	a.reportIfChangedLocked()
	return false
}
