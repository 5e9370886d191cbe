package permissions

import (
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestAsking(t *testing.T) {
	g := NewWithT(t)
	now, interval := start, time.Minute
	a := &Asking{}
	dueIn := func() time.Duration {
		due, ok := a.Due()
		g.Expect(ok).To(BeTrue())
		return due.Sub(now)
	}
	g.Expect(a.Idle()).To(BeTrue())
	a.Changed(now)
	g.Expect(a.Begin(now)).To(BeFalse(), "nothing was refused")
	a.Refused(now, interval)
	now = now.Add(500 * time.Millisecond)
	a.Refused(now, interval)
	g.Expect(dueIn()).To(Equal(500*time.Millisecond), "from the first one on: it may be granted by now")
	g.Expect(a.Begin(now)).To(BeFalse())
	for _, pause := range []time.Duration{500 * time.Millisecond, 3 * time.Second} {
		now = now.Add(pause)
		g.Expect(a.Begin(now)).To(BeTrue())
		a.End(now, interval, Asked{Refused: true})
	}
	g.Expect(dueIn()).To(Equal(interval))
	now = now.Add(10 * time.Second)

	a.Changed(now)
	g.Expect(dueIn()).To(BeZero())
	g.Expect(a.Begin(now)).To(BeTrue())
	g.Expect(a.Begin(now)).To(BeFalse(), "once at a time")
	g.Expect(a.Idle()).To(BeFalse())
	a.End(now, interval, Asked{Refused: true})
	for _, pause := range []time.Duration{time.Second, 3 * time.Second, interval} {
		g.Expect(dueIn()).To(Equal(pause))
		now = now.Add(pause)
		g.Expect(a.Begin(now)).To(BeTrue())
		a.End(now, interval, Asked{Refused: true})
	}
	a.Changed(now)
	g.Expect(dueIn()).To(Equal(minPause), "however often RBAC changes")
	now = now.Add(minPause)
	g.Expect(a.Begin(now)).To(BeTrue())
	a.Changed(now)
	a.End(now, interval, Asked{Refused: true})
	g.Expect(dueIn()).To(Equal(time.Second), "it changed while the question was under way")
	now = now.Add(time.Second)
	g.Expect(a.Begin(now)).To(BeTrue())
	a.Refused(now, interval)
	a.End(now, interval, Asked{Refused: false})
	g.Expect(a.Idle()).To(BeFalse(), "something else was refused meanwhile")
	now = now.Add(dueIn())
	g.Expect(a.Begin(now)).To(BeTrue())
	a.End(now, interval, Asked{Refused: false})
	g.Expect(a.Idle()).To(BeTrue())
}

// While something is refused, it is asked within the interval, and within seconds after a change;
// never twice at once, never more than once a second, and not at all otherwise.
func TestAskingAtRandom(t *testing.T) {
	for seed := range uint64(200) {
		g := NewWithT(t)
		random := rand.New(rand.NewPCG(seed, 1))
		a, now, interval := &Asking{}, start, time.Minute
		refused, asking := false, false
		var refusedSince, changed, asked time.Time
		again := false // refused since it was asked
		for range 2000 {
			now = now.Add(time.Duration(random.IntN(700)) * time.Millisecond)
			switch random.IntN(12) {
			case 0:
				if !refused {
					refusedSince = now
				}
				refused, again = true, true
				a.Refused(now, interval)
			case 1:
				if random.IntN(10) == 0 {
					a.Changed(now)
					if refused && !asking {
						changed = now
					}
				}
			default:
				if asking {
					if random.IntN(2) == 0 {
						// what was refused after the question is still refused
						refused = random.IntN(3) > 0 || again
						a.End(now, interval, Asked{Refused: refused})
						asking = false
					}
					continue
				}
				if !a.Begin(now) {
					break
				}
				g.Expect(refused).To(BeTrue(), "seed %d", seed)
				g.Expect(now.Sub(asked)).To(BeNumerically(">=", minPause), "seed %d", seed)
				asking, again, asked, changed = true, false, now, time.Time{}
			}
			if refused && !asking {
				since := maxTime(asked, refusedSince)
				g.Expect(now.Sub(since)).To(BeNumerically("<", interval+30*time.Second), "seed %d", seed)
				if !changed.IsZero() {
					g.Expect(now.Sub(changed)).To(BeNumerically("<", 20*time.Second), "seed %d", seed)
				}
			}
			if !refused && !asking {
				g.Expect(a.Idle()).To(BeTrue(), "seed %d", seed)
			}
		}
	}
}

// What was refused is tried again when something is granted or may be, and when nothing is asked
// any more: also because a refusal is too old to count.
func TestTryAgain(t *testing.T) {
	for result, want := range map[Asked]bool{
		{}: true, {Cleared: true}: true, {Refused: true}: false, {Refused: true, Cleared: true}: true,
		{Refused: true, Others: true}: true, {Others: true}: true,
	} {
		g := NewWithT(t)
		a := &Asking{}
		a.Refused(start, time.Minute)
		g.Expect(a.Begin(start.Add(time.Minute))).To(BeTrue())
		g.Expect(a.End(start, time.Minute, result)).To(Equal(want), "%+v", result)
		g.Expect(a.Idle()).To(Equal(!result.Refused && !result.Others), "%+v", result)
	}
}
