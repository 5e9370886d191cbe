package monitor

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// Access that has worked is revoked after several denials over some time, with no other answer in
// between. The time depends on what the API server reports about its readiness.
func TestDenialCounter(t *testing.T) {
	type answer struct {
		after float64 // seconds since the previous answer
		Verdict
		revoked bool
	}
	steady := func(v Verdict, seconds int) (answers []answer) {
		for i := range seconds {
			answers = append(answers, answer{1, v, i == seconds-1})
		}
		return answers
	}
	for name, answers := range map[string][]answer{
		"allowed":                      {{0, Allowed, false}},
		"three denials in two seconds": {{0, Denied, false}, {1, Denied, false}, {1, Denied, true}},
		"three denials at once":        {{0, Denied, false}, {0, Denied, false}, {0, Denied, false}, {2, Denied, true}},
		"two denials, long apart":      {{0, Denied, false}, {60, Denied, false}, {1, Denied, true}},
		"allowed in between": {{0, Denied, false}, {1, Denied, false}, {1, Allowed, false}, {1, Denied, false},
			{1, Denied, false}, {1, Denied, true}},
		"no answer in between": {{0, Denied, false}, {1, Denied, false}, {1, Unanswered, false},
			{1, Denied, false}, {1, Denied, false}, {1, Denied, true}},
		"review refused in between": {{0, Denied, false}, {1, Unaskable, false}, {1, Denied, false},
			{1, Denied, false}, {1, Denied, true}},
		"just started, then ready": {{0, DeniedReadinessUnknown, false}, {1, DeniedUnready, false},
			{1, Denied, false}, {1, Denied, false}, {1, Denied, true}},
		"readiness unknown":    steady(DeniedReadinessUnknown, 11),
		"API server not ready": steady(DeniedUnready, 61),
		"not ready, then readiness unknown": append([]answer{
			{1, DeniedUnready, false}, {5, DeniedUnready, false}, {5, DeniedUnready, false},
		}, answer{1, DeniedReadinessUnknown, true}),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var d denialCounter
			now := time.Unix(0, 0)
			for i, a := range answers {
				now = now.Add(time.Duration(a.after * float64(time.Second)))
				doubted := d.count > 0
				revoked, soon := d.observe(&DefaultTiming, a.Verdict, now)
				g.Expect(revoked).To(Equal(a.revoked), "answer %d", i)
				if hurry := a.IsDenial() || doubted && a.Verdict == Unanswered; hurry && !revoked {
					g.Expect(soon).To(Equal(DefaultTiming.ConfirmEvery), "answer %d", i)
				} else {
					g.Expect(soon).To(BeZero(), "answer %d", i)
				}
			}
		})
	}
}

// An informer's refusals are trusted against reviews and discovery if requests that were sent after
// the contradiction are refused often and for long.
func TestRefusalCounter(t *testing.T) {
	at := func(seconds float64) time.Time { return time.Unix(0, int64(seconds*1e9)) }
	type refused struct {
		since, sent, noted float64
		certain            bool
	}
	for name, refusals := range map[string][]refused{
		"often and for long":      {{0, 0, 0, false}, {0, 1, 1, false}, {0, 2, 2, false}, {0, 3, 3, true}},
		"delayed answers":         {{0, 0, 5, false}, {0, 1, 9, false}, {0, 2, 9, false}, {0, 4, 9, false}},
		"for long, but not often": {{0, 0, 0, false}, {0, 60, 60, false}, {0, 61, 61, false}, {0, 62, 62, true}},
		"often, but not for long": {{0, 0, 0, false}, {0, .1, .1, false}, {0, .2, .2, false}, {0, .3, .3, false},
			{0, 2, 2, true}},
		"a request served in between": {{0, 0, 0, false}, {0, 1, 1, false}, {2, 2, 2, false}, {2, 3, 3, false},
			{2, 3.5, 3.5, false}, {2, 4, 4, true}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var c refusalCounter
			for i, r := range refusals {
				g.Expect(c.confirmed(&DefaultTiming, refusal{since: at(r.since), sent: at(r.sent)}, at(r.noted))).
					To(Equal(r.certain), "refusal %d", i)
			}
		})
	}
}

// While events continue, reviews become rarer. A review that comes earlier for another reason does
// not count. After the events have ended, the next event causes a quick review again.
func TestReviewPacer(t *testing.T) {
	g := NewWithT(t)
	var p reviewPacer
	start := time.Unix(0, 0)
	now, reviews := start, 0
	// each review coincides with an event, and the next review comes when the pacer says
	for now.Before(start.Add(10 * time.Minute)) {
		_, again := p.next(&DefaultTiming, now, now, .5)
		now = now.Add(again)
		reviews++
	}
	g.Expect(reviews).To(BeNumerically("~", 24, 4), "of 300, one every two seconds")
	delay, again := p.next(&DefaultTiming, now, now.Add(time.Hour), .5)
	g.Expect(delay).To(BeNumerically("<=", DefaultTiming.MaxGap))
	g.Expect(again).To(Equal(DefaultTiming.MaxGap))
	now = now.Add(delay + 2*DefaultTiming.MaxGap + time.Second)
	delay, again = p.next(&DefaultTiming, now, now.Add(time.Hour), .5)
	g.Expect(delay).To(BeNumerically("<=", DefaultTiming.AfterEvent+time.Second))
	g.Expect(again).To(Equal(DefaultTiming.ConfirmAfter))
}
