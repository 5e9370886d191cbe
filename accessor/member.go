package accessor

import (
	"time"

	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
)

var _ targets.Member = (*identityAccessor)(nil)

// ProbeForAll implements targets.Member.
func (a *identityAccessor) ProbeForAll(id targets.ID) bool {
	event := lifecycle.ProbeRequested{Target: lifecycle.TargetID(id)}
	a.mu.Lock()
	accepts := a.machine.AcceptsProbe(event)
	a.mu.Unlock()
	if accepts {
		a.step(event, eventPayload{})
	}
	return accepts
}

// TargetDown implements targets.Member.
func (a *identityAccessor) TargetDown(id targets.ID, err error) {
	a.step(lifecycle.TargetDown{Target: lifecycle.TargetID(id), Err: err}, eventPayload{})
}

// RetryAt implements targets.Member.
func (a *identityAccessor) RetryAt(id targets.ID, at time.Time) {
	a.step(lifecycle.RetryAt{Target: lifecycle.TargetID(id), At: at}, eventPayload{})
}
