package monitor

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// A Forbidden scope is reviewed every Interval, also while the API server fails. A scope of which
// nothing is known yet backs off further.
func TestReviewsOfAForbiddenScopeDoNotBackOff(t *testing.T) {
	for name, tc := range map[string]struct {
		forbidden bool
		last      time.Duration
	}{
		"Forbidden":     {true, 4 * time.Second},
		"nothing known": {false, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			now := epoch0
			m := New(&Config{Interval: 5 * time.Second, Timing: DefaultTiming}, now)
			m.Start(now, 0)
			review := func(verdict Verdict) time.Duration {
				m.Step(now, 0, Mapped{Question: m.question.id, Mapping: oneMapping})
				m.Step(now, 0, Reviewed{Question: m.question.id, Verdict: verdict, Err: errors.New("no")})
				delay := m.Deadline().Sub(now)
				now = m.Deadline()
				m.Step(now, 0, Tick{})
				return delay
			}
			if tc.forbidden {
				review(Denied)
			}
			var last time.Duration
			for range 8 {
				last = review(Unanswered)
			}
			g.Expect(last).To(Equal(tc.last))
		})
	}
}
