package monitor

import (
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// afterEvents runs a scope whose access is revoked with the last of some events, and no later than
// lag after it for the API server's authorizer. It returns how long after the last event reviews
// were asked for, until that access counts as revoked.
func afterEvents(interval, lag, latency time.Duration, random *rand.Rand) (asked []time.Duration,
	revoked time.Duration) {
	m := New(&Config{Interval: interval, Timing: DefaultTiming}, epoch0)
	now, last, denies := epoch0, time.Time{}, time.Time{}
	var answer Reviewed
	var answers time.Time // when answer comes, while there is a question
	step := func(event Event) {
		m.Step(now, random.Float64(), event)
		if m.question.id == 0 || m.question.id == answer.Question {
			return
		}
		if answer = (Reviewed{Question: m.question.id}); !denies.IsZero() && !now.Before(denies) {
			answer.Verdict, answer.Err = Denied, errForbidden
		}
		answers = now.Add(time.Duration(random.Float64() * float64(latency)))
		if !last.IsZero() {
			asked = append(asked, now.Sub(last))
		}
	}
	until := func(end time.Time) {
		for m.state == Synced {
			next, event := m.Deadline(), Event(Tick{})
			if m.question.id != 0 {
				next, event = answers, answer
			}
			if next.After(end) {
				return
			}
			now = next
			step(event)
		}
	}
	m.Start(now, random.Float64())
	step(EventsWatched{Watched: true})
	step(Mapped{Question: m.question.id, Mapping: oneMapping})
	step(answer)
	step(InformerSynced{Life: m.life.id})
	for range 3 + random.IntN(10) {
		next := now.Add(time.Duration(random.Float64() * float64(2500*time.Millisecond)))
		until(next)
		now = next
		step(AccessMayHaveChanged{})
	}
	last = now
	denies = last.Add(time.Duration(random.Float64() * float64(lag)))
	until(last.Add(24 * time.Hour))
	return asked, now.Sub(last)
}

var reviewIntervals = []time.Duration{300 * time.Millisecond, time.Second, 10 * time.Second, time.Minute}

// However many events come, access that is revoked counts no longer than the interval, or MaxGap,
// and ConfirmAfter.
func TestEventsPutNoRevocationOff(t *testing.T) {
	for _, interval := range reviewIntervals {
		g := NewWithT(t)
		longest := time.Duration(0)
		for seed := range uint64(2000) {
			_, revoked := afterEvents(interval, 0, 0, rand.New(rand.NewPCG(seed, 0)))
			longest = max(longest, revoked)
		}
		t.Logf("every %s: at most %s", interval, longest)
		g.Expect(longest).To(BeNumerically("<=", min(interval, DefaultTiming.MaxGap)+DefaultTiming.ConfirmAfter))
		g.Expect(longest).To(BeNumerically(">", DefaultTiming.ConfirmAfter))
	}
}

// However late the review after an event is, and its answer, one more follows within the interval.
func TestOneMoreReviewAfterEvents(t *testing.T) {
	for _, interval := range reviewIntervals {
		g := NewWithT(t)
		latency, longest := interval/5, time.Duration(0)
		for seed := range uint64(2000) {
			asked, _ := afterEvents(interval, time.Hour, latency, rand.New(rand.NewPCG(seed, 0)))
			g.Expect(len(asked)).To(BeNumerically(">=", 2))
			g.Expect(asked[0]).To(BeNumerically("<=", min(interval, DefaultTiming.MaxGap)+latency))
			longest = max(longest, asked[1]-asked[0])
		}
		t.Logf("every %s: at most %s later", interval, longest)
		g.Expect(longest).To(BeNumerically("<=", interval+latency))
	}
}
