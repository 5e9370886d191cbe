package merge

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/test/support/machinetest"
)

// The times of the explorer, in ticks. A replica that hands over serves on for overlapTicks, and
// what is said is heard within patienceTicks. What is older than longAgo makes no difference, and
// is taken for that old.
const (
	overlapTicks  = 2
	patienceTicks = 1
	longAgo       = -overlapTicks - patienceTicks - 1
	lastVersion   = 2
)

// serving says whether a replica serves.
type serving int8

const (
	idle serving = iota
	serves
	handsOver
)

// server is what a replica does when it serves.
type server struct {
	serving serving
	until   int8 // the time by which it has handed over
	reads   Reads
	// catching: it has asked what there was, and waits until it has heard that.
	catching bool
	target   int8
	asked    int8 // at that time
}

// turns is one extension of which something changes, two replicas that hear of it and serve in
// turn, and a client that reads, now of the one and then of the other. Times are relative to now,
// which is 0: each tick lowers them.
type turns struct {
	own     bool // the extension is that of the first replica
	version int8
	made    [lastVersion + 1]int8 // when a version was made
	heard   [replicas]int8
	servers [replicas]server
	client  reader
}

// reader is a client. It does one thing at a time.
type reader struct {
	seen    int8 // the latest version that it was shown
	waits   int8 // for an answer of that replica, counted from 1
	asked   bool // what there is was asked after its read came
	watches int8 // that replica, counted from 1
}

func tickTime(tick int8) time.Time { return time.Unix(int64(tick), 0).UTC() }

func ticks(at time.Time) int8 { return int8(at.Unix()) }

func newTurns(own bool) turns {
	w := turns{own: own}
	for r := range w.servers {
		w.end(r)
	}
	return w
}

func (w *turns) end(r int) {
	w.servers[r] = server{reads: NewReads(ReadTimes{overlapTicks * time.Second, patienceTicks * time.Second})}
	w.servers[r].reads.alone = tickTime(longAgo)
	if me := int8(r + 1); w.client.waits == me || w.client.watches == me {
		w.client.waits, w.client.asked, w.client.watches = 0, false, 0
	}
}

// shows lets the client see what a replica has heard. It returns whether that is older than what
// it has seen.
func (w *turns) shows(r int) (back bool) {
	back = w.heard[r] < w.client.seen
	w.client.seen = max(w.client.seen, w.heard[r])
	return back
}

// hears lets a replica hear of the next version.
func (w *turns) hears(r int) (back bool) {
	w.heard[r]++
	return w.client.watches == int8(r+1) && w.shows(r)
}

// tick lets time pass. It returns whether that is possible: nothing may be later than the times
// allow.
func (w *turns) tick() bool {
	older := func(tick int8) int8 { return max(tick-1, longAgo) }
	for r := range w.servers {
		s := &w.servers[r]
		if s.serving == handsOver && s.until == 0 {
			return false
		}
		if next := w.heard[r] + 1; next <= w.version && w.made[next] == -patienceTicks {
			return false
		}
		if s.serving == handsOver {
			s.until--
		}
		if s.catching {
			s.asked = older(s.asked)
		}
		s.reads.alone = tickTime(older(ticks(s.reads.alone)))
	}
	for version := range w.version {
		w.made[version+1] = older(w.made[version+1])
	}
	return true
}

// answered ends a read of a replica, which a watch may follow.
func (w *turns) answered(r int, watches bool) (back bool) {
	w.client.waits, w.client.asked = 0, false
	if watches {
		w.client.watches = int8(r + 1)
	}
	return w.shows(r)
}

// steps calls next with each world that may follow, and whether something was shown that goes back.
func (w *turns) steps(next func(after turns, what string, back bool)) {
	try := func(what string, f func(w *turns) (possible, back bool)) {
		after := *w
		if possible, back := f(&after); possible {
			next(after, what, back)
		}
	}
	always := func(f func(w *turns) bool) func(w *turns) (possible, back bool) {
		return func(w *turns) (bool, bool) { return f(w), false }
	}
	try("time passes", always((*turns).tick))
	try("something changes", func(w *turns) (possible, back bool) {
		if w.version == lastVersion {
			return false, false
		}
		w.version++
		w.made[w.version] = 0
		return true, w.own && w.hears(0)
	})
	try("the client has seen enough", always(func(w *turns) bool {
		was := w.client.watches
		w.client.watches = 0
		return was > 0
	}))
	for r := range replicas {
		try("hears", func(w *turns) (possible, back bool) {
			if w.heard[r] == w.version {
				return false, false
			}
			return true, w.hears(r)
		})
		try("serves", always(func(w *turns) bool {
			s := &w.servers[r]
			if s.serving != idle || w.servers[1-r].serving == serves {
				return false
			}
			s.serving = serves
			s.reads.Shared(tickTime(0))
			return true
		}))
		try("hands over", always(func(w *turns) bool {
			s := &w.servers[r]
			if s.serving != serves {
				return false
			}
			s.serving, s.until = handsOver, overlapTicks
			s.reads.Shared(tickTime(0))
			return true
		}))
		try("ends", always(func(w *turns) bool {
			was := w.servers[r].serving
			w.end(r)
			return was != idle
		}))
		try("asks what there is", always(func(w *turns) bool {
			s := &w.servers[r]
			if s.serving == idle || s.catching {
				return false
			}
			s.catching, s.target, s.asked = true, w.version, 0
			if w.client.waits == int8(r+1) {
				w.client.asked = true
			}
			return true
		}))
		for _, watches := range []bool{false, true} {
			try("is read", func(w *turns) (possible, back bool) {
				if w.servers[r].serving == idle || w.client.waits > 0 || w.client.watches > 0 {
					return false, false
				}
				if w.servers[r].reads.MustWait(tickTime(0)) {
					w.client.waits = int8(r + 1)
					return true, false
				}
				return true, w.answered(r, watches)
			})
			try("has caught up", func(w *turns) (possible, back bool) {
				s := &w.servers[r]
				if !s.catching || w.heard[r] < s.target {
					return false, false
				}
				s.reads.CaughtUp(tickTime(s.asked))
				s.catching, s.target, s.asked = false, 0, 0
				return true, w.client.waits == int8(r+1) && w.client.asked && w.answered(r, watches)
			})
		}
	}
}

// In whatever order two replicas serve, hand over, end, hear of changes and ask what there is, a
// client is not shown what is older than what it has seen, as long as all is heard in time. Reads
// do not wait any more when all was heard out, or patience ends. Rounds that fail are left out, and
// a replica that serves on although its term is over: see current.
func TestExploreReads(t *testing.T) {
	for _, own := range []bool{false, true} {
		atOnce, gaveUp := false, false
		seen, _, steps := machinetest.Explore(t, newTurns(own), machinetest.Depth(),
			func(w *turns, visit func(turns, []string)) {
				w.steps(func(after turns, what string, back bool) {
					var broken []string
					if back {
						broken = append(broken, fmt.Sprintf("%s: it goes back: %+v", what, after))
					}
					visit(after, broken)
				})
			})
		for w := range seen {
			if s := w.servers[0]; s.serving == serves && !s.reads.MustWait(tickTime(0)) {
				atOnce = atOnce || ticks(s.reads.alone) >= -patienceTicks
				gaveUp = gaveUp || s.reads.wait
			}
		}
		NewWithT(t).Expect([]bool{atOnce, gaveUp}).To(HaveEach(true))
		t.Logf("own %v: %d worlds, %d steps", own, len(seen), steps)
	}
}
