package scopedcache

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// A right that has worked is lost when it was denied often and for long, with nothing else in between.
func TestDoubts(t *testing.T) {
	type answer struct {
		after time.Duration
		verdict
		gone bool
		soon time.Duration
	}
	for name, answers := range map[string][]answer{
		"allowed":                      {{0, allowed, false, 0}},
		"three denials in two seconds": {{0, denied, false, confirmEvery}, {1, denied, false, confirmEvery}, {1, denied, true, 0}},
		"three denials at once":        {{0, denied, false, confirmEvery}, {0, denied, false, confirmEvery}, {0, denied, false, confirmEvery}, {2, denied, true, 0}},
		"two denials, long apart":      {{0, denied, false, confirmEvery}, {60, denied, false, confirmEvery}, {1, denied, true, 0}},
		"allowed in between":           {{0, denied, false, confirmEvery}, {1, denied, false, confirmEvery}, {1, allowed, false, 0}, {1, denied, false, confirmEvery}, {1, denied, false, confirmEvery}, {1, denied, true, 0}},
		"no answer in between":         {{0, denied, false, confirmEvery}, {1, denied, false, confirmEvery}, {1, unanswered, false, confirmEvery}, {1, denied, false, confirmEvery}, {1, denied, false, confirmEvery}, {1, denied, true, 0}},
		"not to be asked in between":   {{0, denied, false, confirmEvery}, {1, unknown, false, 0}, {1, denied, false, confirmEvery}, {1, denied, false, confirmEvery}, {1, denied, true, 0}},
		"no answer, without a doubt":   {{0, unanswered, false, 0}, {1, unknown, false, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var d doubts
			now := time.Unix(0, 0)
			for i, a := range answers {
				now = now.Add(a.after * time.Second)
				gone, soon := d.judge(a.verdict, now, confirmAfter)
				g.Expect(gone).To(Equal(a.gone), "answer %d", i)
				g.Expect(soon).To(Equal(a.soon), "answer %d", i)
			}
		})
	}
}

// Where the API server does not say whether it is ready, it takes longer.
func TestDoubtsAboutAServerThatDoesNotTell(t *testing.T) {
	g := NewWithT(t)
	var d doubts
	now := time.Unix(0, 0)
	asked := 0
	for gone := false; !gone; now = now.Add(confirmEvery) {
		gone, _ = d.judge(denied, now, confirmUnready)
		asked++
	}
	g.Expect(asked).To(Equal(int(confirmUnready/confirmEvery) + 1))
}

// An informer is believed against reviews and discovery when what it sent after they had spoken was refused often and for
// long.
func TestContradictions(t *testing.T) {
	at := func(seconds float64) time.Time { return time.Unix(0, int64(seconds*1e9)) }
	type refused struct {
		since, sent, noted float64
		certain            bool
	}
	for name, refusals := range map[string][]refused{
		"often and for long":          {{0, 0, 0, false}, {0, 1, 1, false}, {0, 2, 2, false}, {0, 3, 3, true}},
		"answers that lay around":     {{0, 0, 5, false}, {0, 1, 9, false}, {0, 2, 9, false}, {0, 4, 9, false}},
		"for long, but not often":     {{0, 0, 0, false}, {0, 60, 60, false}, {0, 61, 61, false}, {0, 62, 62, true}},
		"often, but not for long":     {{0, 0, 0, false}, {0, .1, .1, false}, {0, .2, .2, false}, {0, .3, .3, false}, {0, 2, 2, true}},
		"something served in between": {{0, 0, 0, false}, {0, 1, 1, false}, {2, 2, 2, false}, {2, 3, 3, false}, {2, 3.5, 3.5, false}, {2, 4, 4, true}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var c contradictions
			for i, r := range refusals {
				g.Expect(c.certain(refusal{since: at(r.since), sent: at(r.sent)}, at(r.noted))).To(Equal(r.certain), "refusal %d", i)
			}
		})
	}
}
