package monitor

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/latchkey-dev/latchkey/test/support/machinetest"
)

// simulation has the machines of many scopes by deadline.
type simulation []*Machine

func (s simulation) Len() int           { return len(s) }
func (s simulation) Less(i, j int) bool { return s[i].Deadline().Before(s[j].Deadline()) }
func (s simulation) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *simulation) Push(m any)        { *s = append(*s, m.(*Machine)) }
func (s *simulation) Pop() any {
	old := *s
	m := old[len(old)-1]
	*s = old[:len(old)-1]
	return m
}

// runScopes runs 50,000 scopes, which start within 20 s, and returns the reviews in the busiest ten
// seconds and the mean, per second. It starts to count after the starts. From lost on, unless it is
// zero, events are watched no more.
func runScopes(scopes int, watched bool, lost, end time.Duration) (busiest, mean float64) {
	const starts = 20 * time.Second
	random := rand.New(rand.NewPCG(1, 2))
	config := &Config{Interval: time.Minute, Timing: DefaultTiming}
	var all simulation
	for n := range scopes {
		m := New(config, epoch0)
		now := epoch0.Add(starts * time.Duration(n) / time.Duration(scopes))
		m.Start(now, 0)
		for _, event := range []Event{EventsWatched{Watched: watched}, Mapped{Question: m.question.id, Mapping: oneMapping}} {
			m.Step(now, random.Float64(), event)
		}
		m.Step(now, random.Float64(), Reviewed{Question: m.question.id, Verdict: Allowed})
		m.Step(now, random.Float64(), InformerSynced{Life: m.life.id})
		all = append(all, &m)
	}
	heap.Init(&all)
	reviews := make([]int, int(end/(10*time.Second))+1)
	total := 0
	for {
		m := all[0]
		now := m.Deadline()
		if now.Sub(epoch0) >= end {
			break
		}
		if lost > 0 && now.Sub(epoch0) >= lost {
			for _, one := range all {
				one.Step(epoch0.Add(lost), random.Float64(), EventsWatched{})
				if one.question.id != 0 {
					one.Step(epoch0.Add(lost), random.Float64(), Reviewed{Question: one.question.id, Verdict: Allowed})
				}
			}
			heap.Init(&all)
			lost = 0
			continue
		}
		m.Step(now, random.Float64(), Tick{})
		m.Step(now, random.Float64(), Reviewed{Question: m.question.id, Verdict: Allowed})
		heap.Fix(&all, 0)
		if since := now.Sub(epoch0); since > starts {
			total++
			reviews[since/(10*time.Second)]++
		}
	}
	for _, n := range reviews {
		busiest = max(busiest, float64(n)/10)
	}
	return busiest, float64(total) / end.Seconds()
}

// 10,000 identities with five scopes each cause less than 200 reviews a second while events of RBAC
// are watched, in the busiest ten seconds too. Without events there are ten times as many.
func TestReviewsAtRest(t *testing.T) {
	scopes := 50_000
	if machinetest.Quick() {
		scopes = 5_000 // and as many fewer reviews
	}
	most := func(reviews int) float64 { return float64(reviews) * float64(scopes) / 50_000 }
	busiest, mean := runScopes(scopes, true, 0, time.Hour)
	_, unwatched := runScopes(scopes, false, 0, 6*time.Minute)
	t.Logf("%d scopes: %.0f reviews a second, %.0f at most; %.0f without events", scopes, mean, busiest, unwatched)
	if busiest >= most(200) {
		t.Errorf("%.0f reviews a second", busiest)
	}
	if busiest, _ := runScopes(scopes, true, 30*time.Minute, 40*time.Minute); busiest > most(2000) {
		t.Errorf("%.0f reviews a second after events were lost, and 833 without events", busiest)
	}
	if ratio := unwatched / mean; ratio < 9 || ratio > 11 {
		t.Errorf("reviews are %.1f times as rare while events are watched, want 10", ratio)
	}
}
