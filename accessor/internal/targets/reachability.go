package targets

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// ID names a membership. IDs are never used twice; zero names none.
type ID uint64

// Member is a connection that uses a target. The target calls it without holding a lock, from any
// goroutine.
type Member interface {
	// ProbeForAll has the member probe on behalf of all members. It returns false if the member
	// cannot do so now.
	ProbeForAll(membership ID) bool
	// TargetDown ends the member's connection, because the target does not answer anybody.
	TargetDown(membership ID, err error)
	// RetryAt brings forward to at a connect that waits because the target was silent.
	RetryAt(membership ID, at time.Time)
}

// Membership is one connection's share in a target. It begins with [Set.Join] and ends with Leave.
type Membership struct {
	*Target
	id     ID
	member Member

	// Guarded by the target's mu.
	connected  bool
	lastProbe  time.Time
	waitsUntil time.Time // the next connect, if it waits because the target was silent; else zero
}

// ID names the membership.
func (m *Membership) ID() ID { return m.id }

// Leave ends the membership. Call it once. The last member's Leave closes the target's TCP
// connections.
func (m *Membership) Leave() {
	m.mu.Lock()
	m.joined = slices.DeleteFunc(m.joined, func(other *Membership) bool { return other == m })
	m.mu.Unlock()
	m.set.release(m.Target)
}

// Update notes how the member stands: whether it is connected, when it last probed, and until when
// it waits because the target was silent (zero if it does not).
func (m *Membership) Update(connected bool, lastProbe, waitsUntil time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.connected, m.lastProbe, m.waitsUntil = connected, lastProbe, waitsUntil
}

// Outcome is what became of a request to the target.
type Outcome struct {
	Answered bool
	Asked    time.Time // when the request was sent
	ForAll   bool      // the target had the member ask
	Err      error     // if it was not answered
}

// Report notes what became of a member's request. An answer wakes the members that wait for the
// target. Silence counts against the target if the target had the member ask; after
// FailureThreshold of those all members are disconnected.
func (m *Membership) Report(outcome Outcome) {
	if outcome.Answered {
		m.wakeWaiters()
		return
	}
	m.silent.Store(true)
	if m.LastAnswer().After(outcome.Asked) { // another member got an answer meanwhile
		m.wakeWaiters()
	}
	if outcome.ForAll && m.set.Probe.Failed(m.probeFailed(outcome.Asked, time.Now(), outcome.Err)) {
		m.silent.Store(true)
		for _, member := range m.members(func(other *Membership) bool { return other.connected }) {
			member.member.TargetDown(member.id, outcome.Err)
		}
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
func (t *Target) members(match func(*Membership) bool) (found []*Membership) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.joined {
		if match(m) {
			found = append(found, m)
		}
	}
	return found
}

// wakeWaiters lets the members that wait because the target was silent connect, spread so that the
// target meets no storm. It does nothing unless the target was silent.
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

// CheckSilent has one member of every target that is silent probe for all: of those that are
// connected the one whose probe is longest ago. If none is connected, the one whose next connect is
// soonest tries it now, so that a target that is back is noticed before every backoff has run out.
func (s *Set) CheckSilent(now time.Time) {
	for _, t := range s.List() {
		if now.Sub(t.LastAnswer()) >= s.Probe.Interval {
			t.checkSilent(now)
		}
	}
}

func (t *Target) checkSilent(now time.Time) {
	connected := t.members(func(m *Membership) bool { return m.connected })
	waiting := t.members(func(m *Membership) bool { return !m.waitsUntil.IsZero() })
	switch {
	case len(connected) > 0:
		if !t.isTurn(now, t.set.Probe.Interval) {
			return
		}
		t.sortMembers(connected, func(m *Membership) time.Time { return m.lastProbe })
		for _, m := range connected {
			if m.member.ProbeForAll(m.id) {
				t.takeTurn(now)
				return
			}
		}
	case len(waiting) > 1: // one alone has its own backoff only
		if !t.isTurn(now, scoutInterval(len(waiting), t.set.Probe.Interval, t.set.FirstBackoff)) {
			return
		}
		t.takeTurn(now)
		t.sortMembers(waiting, func(m *Membership) time.Time { return m.waitsUntil })
		waiting[0].member.RetryAt(waiting[0].id, now)
	}
}

func (t *Target) sortMembers(members []*Membership, by func(*Membership) time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortFunc(members, func(a, b *Membership) int { return by(a).Compare(by(b)) })
}

// isTurn reports whether it is time to make a member ask: none was made to ask for an interval.
func (t *Target) isTurn(now time.Time, interval time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Sub(t.asked) >= interval
}

func (t *Target) takeTurn(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = now
}

// WakeDelay is how long one of so many waiters for the same thing, which is back, waits on: a
// random time of up to 50 ms per waiter and 10 s in all, so that what is back meets no storm.
func WakeDelay(waiters int) time.Duration {
	return time.Duration(rand.Float64() * float64(wakeWindow(waiters)))
}

// wakeWindow is over what time waiters are spread. A single one need not wait.
func wakeWindow(waiters int) time.Duration {
	return min(time.Duration(max(waiters-1, 0))*50*time.Millisecond, 10*time.Second)
}

// scoutInterval is how often one of so many who wait for a silent target tries it for all. The more
// they are, the more often: from the first backoff down to interval.
func scoutInterval(waiters int, interval, firstBackoff time.Duration) time.Duration {
	return max(interval, firstBackoff/time.Duration(max(waiters-1, 1)))
}
