package lifecycle

import (
	"math/rand/v2"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/test/support/machinetest"
)

func TestQueue(t *testing.T) {
	g := NewWithT(t)
	var q Queue[string]
	g.Expect(q.Idle()).To(BeTrue())
	g.Expect(q.Take()).To(BeFalse(), "the queue is empty")
	q.Append("a", "b")
	g.Expect(q.Idle()).To(BeFalse())
	g.Expect(q.Take()).To(BeTrue())
	g.Expect(q.Take()).To(BeFalse(), "another caller drains the queue")
	next, ok := q.Next()
	g.Expect([]any{next, ok}).To(Equal([]any{"a", true}))
	q.Append("c")
	next, _ = q.Next()
	g.Expect(next).To(Equal("b"))
	q.GiveBack() // b panicked
	g.Expect(q.Idle()).To(BeFalse())
	g.Expect(q.Take()).To(BeTrue())
	next, _ = q.Next()
	g.Expect(next).To(Equal("c"))
	g.Expect(q.Idle()).To(BeFalse(), "c still runs")
	_, ok = q.Next()
	g.Expect(ok).To(BeFalse())
	g.Expect(q.Idle()).To(BeTrue())
}

// TestExploreQueue runs random schedules of threads that step, and drain the queue if Take returns
// true. Each move of a thread is what the driver does under one lock. Some effects panic or call
// step.
func TestExploreQueue(t *testing.T) {
	schedules := 1_000_000
	if machinetest.Quick() {
		schedules = 50_000
	}
	contended, panicked := 0, 0
	for seed := range schedules {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		s := schedule{threads: make([]thread, 2+r.IntN(3)), random: r}
		for i := range s.threads {
			s.threads[i].steps = 1 + r.IntN(3)
		}
		if problem := s.run(); problem != "" {
			t.Fatalf("seed %d: %s", seed, problem)
		}
		contended += s.contended
		panicked += s.panicked
	}
	t.Logf("%d schedules; %d steps found the queue taken, %d effects panicked", schedules, contended, panicked)
	if contended == 0 || panicked == 0 {
		t.Error("the schedules contain no contention or no panic")
	}
}

// schedule is an interleaving of threads.
type schedule struct {
	queue               Queue[int]
	threads             []thread
	random              *rand.Rand
	appended, ran       int
	running             int // effects that run now
	contended, panicked int
}

// thread is a goroutine that steps.
type thread struct {
	steps   int // remaining steps
	drains  bool
	effect  int // the effect that it runs, plus one; zero for none
	nesting bool
}

func (s *schedule) run() string {
	for {
		var runnable []*thread
		for i := range s.threads {
			if t := &s.threads[i]; t.steps > 0 || t.drains {
				runnable = append(runnable, t)
			}
		}
		if len(runnable) == 0 {
			break
		}
		if problem := s.move(runnable[s.random.IntN(len(runnable))]); problem != "" {
			return problem
		}
	}
	// A goroutine that waits until the queue is empty runs the effects that remain after a panic.
	for !s.queue.Idle() {
		if !s.queue.Take() {
			return "the remaining effects cannot be taken"
		}
		last := thread{drains: true}
		for last.drains {
			if problem := s.move(&last); problem != "" {
				return problem
			}
		}
	}
	switch {
	case s.ran != s.appended:
		return "an effect was lost"
	case s.running != 0:
		return "an effect still runs"
	}
	return ""
}

// move does what one thread does under one lock.
func (s *schedule) move(t *thread) string {
	switch {
	case t.effect != 0: // the effect ends
		return s.endEffect(t)
	case t.drains:
		next, ok := s.queue.Next()
		if !ok {
			t.drains = false
			return ""
		}
		if next != s.ran {
			return "effects run out of order"
		}
		if s.running++; s.running > 1 {
			return "two effects run at the same time"
		}
		t.effect = next + 1
	default:
		t.steps--
		s.step(t)
	}
	return ""
}

// step appends effects, and takes the queue if it is idle.
func (s *schedule) step(t *thread) {
	for range s.random.IntN(4) {
		s.queue.Append(s.appended)
		s.appended++
	}
	if s.queue.Take() {
		t.drains = true
	} else if !s.queue.Idle() {
		s.contended++
	}
}

func (s *schedule) endEffect(t *thread) string {
	if !t.nesting && s.random.IntN(8) == 0 { // the effect calls step, as a report to the target may
		t.nesting = true
		drains := t.drains
		t.drains = false
		s.step(t)
		if t.drains {
			return "an effect that steps took the queue from the goroutine that drains it"
		}
		t.drains = drains
		return ""
	}
	t.nesting, t.effect = false, 0
	s.running--
	s.ran++
	if s.random.IntN(16) == 0 {
		s.panicked++
		s.queue.GiveBack()
		t.drains = false
	}
	return ""
}
