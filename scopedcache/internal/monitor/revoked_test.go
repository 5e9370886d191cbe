package monitor

import (
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// revokedAfter returns how long access that is revoked with the last of some events still counts.
// The API server answers at once.
func revokedAfter(interval time.Duration, random *rand.Rand) time.Duration {
	m := New(&Config{Interval: interval, Timing: DefaultTiming}, epoch0)
	now, verdict := epoch0, Allowed
	step := func(event Event) { m.Step(now, random.Float64(), event) }
	answer := func() { step(Reviewed{Question: m.question.id, Verdict: verdict, Err: errForbidden}) }
	m.Start(now, random.Float64())
	step(EventsWatched{Watched: true})
	step(Mapped{Question: m.question.id, Mapping: oneMapping})
	answer()
	step(InformerSynced{Life: m.life.id})
	until := func(end time.Time) {
		for m.state == Synced && !m.Deadline().After(end) {
			now = m.Deadline()
			step(Tick{})
			answer()
		}
	}
	for range 3 + random.IntN(10) {
		next := now.Add(time.Duration(random.Float64() * float64(2500*time.Millisecond)))
		until(next)
		now = next
		step(AccessMayHaveChanged{})
	}
	verdict = Denied
	revoked := now
	until(now.Add(time.Hour))
	return now.Sub(revoked)
}

// However many events come, access that is revoked counts no longer than if none were watched, and
// never longer than MaxGap and ConfirmAfter.
func TestEventsPutNoRevocationOff(t *testing.T) {
	for _, interval := range []time.Duration{300 * time.Millisecond, time.Second, 10 * time.Second, time.Minute} {
		g := NewWithT(t)
		longest := time.Duration(0)
		for seed := range uint64(2000) {
			longest = max(longest, revokedAfter(interval, rand.New(rand.NewPCG(seed, 0))))
		}
		t.Logf("every %s: at most %s", interval, longest)
		g.Expect(longest).To(BeNumerically("<=", min(interval, DefaultTiming.MaxGap)+DefaultTiming.ConfirmAfter))
		g.Expect(longest).To(BeNumerically(">", DefaultTiming.ConfirmAfter))
	}
}
