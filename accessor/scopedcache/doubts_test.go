package scopedcache

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// A right that has worked is lost when it was denied often and for long, with nothing else in between. How long depends on
// what the API server says of itself.
func TestDoubts(t *testing.T) {
	type answer struct {
		after float64 // seconds
		verdict
		gone bool
	}
	steady := func(v verdict, seconds int) (answers []answer) {
		for i := range seconds {
			answers = append(answers, answer{1, v, i == seconds-1})
		}
		return answers
	}
	for name, answers := range map[string][]answer{
		"allowed":                      {{0, allowed, false}},
		"three denials in two seconds": {{0, denied, false}, {1, denied, false}, {1, denied, true}},
		"three denials at once":        {{0, denied, false}, {0, denied, false}, {0, denied, false}, {2, denied, true}},
		"two denials, long apart":      {{0, denied, false}, {60, denied, false}, {1, denied, true}},
		"allowed in between":           {{0, denied, false}, {1, denied, false}, {1, allowed, false}, {1, denied, false}, {1, denied, false}, {1, denied, true}},
		"no answer in between":         {{0, denied, false}, {1, denied, false}, {1, unanswered, false}, {1, denied, false}, {1, denied, false}, {1, denied, true}},
		"not to be asked in between":   {{0, denied, false}, {1, unknown, false}, {1, denied, false}, {1, denied, false}, {1, denied, true}},
		"first moments, then ready":    {{0, deniedUntold, false}, {1, deniedUnready, false}, {1, denied, false}, {1, denied, false}, {1, denied, true}},
		"it does not tell":             steady(deniedUntold, 11),
		"it is not ready":              steady(deniedUnready, 61),
		"not ready, then silent":       append([]answer{{1, deniedUnready, false}, {5, deniedUnready, false}, {5, deniedUnready, false}}, answer{1, deniedUntold, true}),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var d doubts
			now := time.Unix(0, 0)
			for i, a := range answers {
				now = now.Add(time.Duration(a.after * float64(time.Second)))
				doubted := d.denials > 0
				gone, soon := d.judge(a.verdict, now)
				g.Expect(gone).To(Equal(a.gone), "answer %d", i)
				if hurry := a.isDenial() || doubted && a.verdict == unanswered; hurry && !gone {
					g.Expect(soon).To(Equal(confirmEvery), "answer %d", i)
				} else {
					g.Expect(soon).To(BeZero(), "answer %d", i)
				}
			}
		})
	}
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
