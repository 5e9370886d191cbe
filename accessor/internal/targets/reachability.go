package targets

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// ID identifies a membership. IDs are never used twice; zero identifies none.
type ID uint64

// Member is a connection that uses a target. The target calls it without holding a lock, from any
// goroutine.
type Member interface {
	// ProbeForAll makes the member probe on behalf of all members. ProbeForAll returns false if the
	// member cannot probe now.
	ProbeForAll(membership ID) bool
	// TargetDown ends the member's connection, because the target does not answer any member.
	TargetDown(membership ID, err error)
	// RetryAt lets a connect that waits for the silent target begin at the given time, if that is
	// earlier than planned.
	RetryAt(membership ID, at time.Time)
}

// Membership is one connection's use of a target, from [Set.Join] to Leave.
type Membership struct {
	*Target
	id     ID
	member Member
	policy *Policy

	// Guarded by the target's mu.
	connected  bool
	lastProbe  time.Time
	waitsUntil time.Time // time of the next connect, if the member waits because the target was silent; otherwise zero
}

// ID returns the ID of the membership.
func (m *Membership) ID() ID { return m.id }

// Leave ends the membership. Call it once. The last member's Leave closes the target's TCP
// connections.
func (m *Membership) Leave() {
	m.mu.Lock()
	m.memberCount.Add(-1)
	m.memberships = slices.DeleteFunc(m.memberships, func(other *Membership) bool { return other == m })
	if v := m.views[m.policy]; v.members > 1 {
		v.members--
	} else {
		delete(m.views, m.policy)
	}
	m.mu.Unlock()
	m.set.release(m.Target)
}

// Update records the state of the member: whether it is connected, when it last probed, and until
// when it waits because the target was silent (zero if it does not wait).
func (m *Membership) Update(connected bool, lastProbe, waitsUntil time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.connected, m.lastProbe, m.waitsUntil = connected, lastProbe, waitsUntil
}

// Outcome is the result of a request to the target.
type Outcome struct {
	Answered bool
	Asked    time.Time // when the request was sent
	ForAll   bool      // the target requested the probe
	Err      error     // if the request was not answered
}

// Report records the result of a member's request. An answer wakes the members that wait for the
// target. Silence counts as a failure of the target if the target requested the probe. After
// FailureThreshold such failures all members with the same policy are disconnected.
func (m *Membership) Report(outcome Outcome) {
	if outcome.Answered {
		m.wakeWaiters()
		return
	}
	m.silent.Store(true)
	if m.LastAnswer().After(outcome.Asked) { // another member got an answer meanwhile
		m.wakeWaiters()
	}
	if !outcome.ForAll {
		return
	}
	health := m.probeFailed(outcome.Asked, time.Now(), outcome.Err)
	if !m.policy.Probe.Failed(health) {
		return
	}
	m.silent.Store(true)
	for _, member := range m.members(func(other *Membership) bool {
		return other.policy == m.policy && other.connected
	}) {
		member.member.TargetDown(member.id, outcome.Err)
	}
}

// Reachability returns what is known about whether the target answers.
func (t *Target) Reachability() connstate.Reachability {
	switch {
	case t.silent.Load():
		return connstate.Unresponsive
	case t.lastAnswer.Load() != nil:
		return connstate.Reachable
	default:
		return connstate.Unknown
	}
}

// members returns the members that match.
func (t *Target) members(match func(*Membership) bool) (result []*Membership) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.memberships {
		if match(m) {
			result = append(result, m)
		}
	}
	return result
}

// wakeWaiters lets the members that wait because the target was silent connect. The connects are
// spread, so that the target receives no burst of requests. wakeWaiters does nothing unless the
// target was silent.
func (t *Target) wakeWaiters() {
	if !t.silent.Load() || !t.silent.CompareAndSwap(true, false) {
		return
	}
	waiting := t.members(func(m *Membership) bool { return !m.waitsUntil.IsZero() })
	now := time.Now()
	for _, m := range waiting {
		m.member.RetryAt(m.id, now.Add(WakeDelay(len(waiting))))
	}
}

// CheckSilent makes one member of every target that is silent for longer than the policy's interval
// probe on behalf of all. Only members with that policy are selected. CheckSilent selects
// the connected member whose last probe is the oldest. If no member is connected, the member whose
// next connect is the soonest connects now. The members thus notice an available target before
// their backoffs end.
func (s *Set) CheckSilent(now time.Time, policy *Policy) {
	for _, t := range s.List() {
		if now.Sub(t.LastAnswer()) >= policy.Probe.Interval {
			t.checkSilent(now, policy)
		}
	}
}

func (t *Target) checkSilent(now time.Time, policy *Policy) {
	connected := t.members(func(m *Membership) bool { return m.policy == policy && m.connected })
	waiting := t.members(func(m *Membership) bool { return m.policy == policy && !m.waitsUntil.IsZero() })
	switch {
	case len(connected) > 0:
		if !t.isTurn(now, policy, policy.Probe.Interval) {
			return
		}
		t.sortMembers(connected, func(m *Membership) time.Time { return m.lastProbe })
		for _, m := range connected {
			if m.member.ProbeForAll(m.id) {
				t.takeTurn(now, policy)
				return
			}
		}
	case len(waiting) > 1: // a single waiting member uses only its own backoff
		if !t.isTurn(now, policy, scoutInterval(len(waiting), policy.Probe.Interval, policy.FirstBackoff)) {
			return
		}
		t.takeTurn(now, policy)
		t.sortMembers(waiting, func(m *Membership) time.Time { return m.waitsUntil })
		waiting[0].member.RetryAt(waiting[0].id, now)
	}
}

func (t *Target) sortMembers(members []*Membership, key func(*Membership) time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortFunc(members, func(a, b *Membership) int { return key(a).Compare(key(b)) })
}

// isTurn reports whether a member with the policy is due to probe, because none was selected for an
// interval.
func (t *Target) isTurn(now time.Time, policy *Policy, interval time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.views[policy]
	return v != nil && now.Sub(v.lastTurn) >= interval
}

func (t *Target) takeTurn(now time.Time, policy *Policy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v := t.views[policy]; v != nil {
		v.lastTurn = now
	}
}

// WakeDelay returns how long one of the given number of waiters delays its retry after the resource
// that all of them wait for is available again. The delay is random, up to 50 ms per waiter and 10
// s in total. The delays spread the retries, so that the resource receives no burst of requests.
func WakeDelay(waiters int) time.Duration {
	return time.Duration(rand.Float64() * float64(wakeWindow(waiters)))
}

// wakeWindow returns the time over which waiters are spread. A single waiter need not wait.
func wakeWindow(waiters int) time.Duration {
	return min(time.Duration(max(waiters-1, 0))*50*time.Millisecond, 10*time.Second)
}

// scoutInterval returns how often one of the given number of waiters tries a silent target on
// behalf of all. The interval decreases with the number of waiters, from firstBackoff down to
// interval.
func scoutInterval(waiters int, interval, firstBackoff time.Duration) time.Duration {
	return max(interval, firstBackoff/time.Duration(max(waiters-1, 1)))
}
