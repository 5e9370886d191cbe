package merge

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/test/support/machinetest"
)

// The times of the explorer, in ticks. A replica that hands over serves on for overlapTicks. What
// is older than longAgo makes no difference, and is taken for that old.
const (
	overlapTicks = 1
	longAgo      = -overlapTicks - 2
	lastVersion  = 1
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
	doubt   Doubt    // about the extension
	round   question // for reads
	later   question // because of the doubt
}

// question is what a replica asks: what there is. It waits until it has heard that.
type question struct {
	open   bool
	target int8
	asked  int8 // at that time
}

// turns is one extension of which something changes, two replicas that hear of it, however late,
// and serve in turn, and a client that reads, now of the one and then of the other. Times are
// relative to now, which is 0: each tick lowers them. One version and a later one stand for all.
// The first replica waits until what it asks is heard. The second one does not: then there is
// doubt.
type turns struct {
	own     bool // the extension is that of the first replica
	version int8
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
	w.servers[r] = server{reads: NewReads(overlapTicks * time.Second)}
	w.servers[r].reads.alone = tickTime(longAgo)
	if me := int8(r + 1); w.client.waits == me || w.client.watches == me {
		w.client.waits, w.client.asked, w.client.watches = 0, false, 0
	}
}

// shows lets the client see what a replica has heard, unless there is doubt: then it is Unknown. It
// returns whether that is older than what the client has seen.
func (w *turns) shows(r int) (back bool) {
	if _, doubted := w.servers[r].doubt.Raised(); doubted {
		return false
	}
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
		if s.serving == handsOver {
			s.until--
		}
		for _, q := range []*question{&s.round, &s.later} {
			if q.open {
				q.asked = older(q.asked)
			}
		}
		if since, raised := s.doubt.Raised(); raised {
			s.doubt.since = tickTime(older(ticks(since)))
		}
		s.reads.alone = tickTime(older(ticks(s.reads.alone)))
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
			if s.serving == idle || s.round.open {
				return false
			}
			s.round = question{true, w.version, 0}
			if w.client.waits == int8(r+1) {
				w.client.asked = true
			}
			return true
		}))
		try("asks because of the doubt", always(func(w *turns) bool {
			s := &w.servers[r]
			if _, doubted := s.doubt.Raised(); !doubted || s.later.open {
				return false
			}
			s.later = question{true, w.version, 0}
			return true
		}))
		try("hears what it asked because of the doubt", func(w *turns) (possible, back bool) {
			s := &w.servers[r]
			if !s.later.open || w.heard[r] < s.later.target {
				return false, false
			}
			s.doubt.Settle(tickTime(s.later.asked))
			s.later = question{}
			return true, w.client.watches == int8(r+1) && w.shows(r)
		})
		for _, watches := range []bool{false, true} {
			try("is read", func(w *turns) (possible, back bool) {
				if w.servers[r].serving == idle || w.client.waits > 0 || w.client.watches > 0 {
					return false, false
				}
				if w.servers[r].reads.MustWait() {
					w.client.waits = int8(r + 1)
					return true, false
				}
				return true, w.answered(r, watches)
			})
			ends := func(w *turns, doubt func(begun time.Time)) (possible, back bool) {
				s := &w.servers[r]
				begun := tickTime(s.round.asked)
				doubt(begun)
				s.reads.CaughtUp(begun)
				s.round = question{}
				back = w.client.watches == int8(r+1) && w.shows(r)
				return true, back || w.client.waits == int8(r+1) && w.client.asked && w.answered(r, watches)
			}
			try("has caught up", func(w *turns) (possible, back bool) {
				s := &w.servers[r]
				if !s.round.open || w.heard[r] < s.round.target {
					return false, false
				}
				return ends(w, s.doubt.Settle)
			})
			try("does not wait any longer", func(w *turns) (possible, back bool) {
				s := &w.servers[r]
				if !s.round.open || r == 0 {
					return false, false
				}
				return ends(w, s.doubt.Raise)
			})
		}
	}
}

// In whatever order two replicas serve, hand over, end, hear of changes and ask what there is,
// however late that is heard, a client is not shown what is older than what it has seen. Reads do
// not wait any more when all was heard out, or is in doubt. What is in doubt is heard out later. A
// replica that serves on although its term is over is left out: see current.
func TestExploreReads(t *testing.T) {
	for _, own := range []bool{false, true} {
		atOnce, doubted := false, false
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
			if s := w.servers[1]; s.serving == serves && !s.reads.MustWait() {
				_, is := s.doubt.Raised()
				atOnce = atOnce || !is && ticks(s.reads.alone) == -1
				doubted = doubted || is
			}
		}
		NewWithT(t).Expect([]bool{atOnce, doubted}).To(HaveEach(true))
		t.Logf("own %v: %d worlds, %d steps", own, len(seen), steps)
	}
}
