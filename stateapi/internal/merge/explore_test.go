package merge

import (
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/test/support/machinetest"
)

const replicas = 2

// message is what a replica says: that it has the extension in a term, or, with term 0, not.
type message struct{ term int8 }

// queue has what a replica has said, and what has not arrived yet.
type queue struct {
	messages [2]message
	n        int8
}

// world is one extension, and what two replicas do and say.
type world struct {
	holder  int8 // 1 and 2 are replicas, 0 is none
	term    int8 // of the lease
	claims  [replicas]int8
	queues  [replicas]queue
	heard   [replicas]bool
	doubted [replicas]bool // another one may have shown more of what it said
	deaf    [replicas]bool // it is suspended, or cut off: nothing that it says arrives
	streams [replicas]bool // it is followed: what it says arrives, in order
	floor   int8
	floored bool
}

const lastTerm = 4

func name(r int) string { return fmt.Sprint("replica-", r) }

func (w *world) choose() Choice {
	var claims []Claim
	for r := range replicas {
		if w.claims[r] > 0 {
			claims = append(claims, Claim{
				Replica: name(r),
				UID:     "uid",
				Term:    int64(w.claims[r]),
				Heard:   w.heard[r],
				Doubted: w.doubted[r],
			})
		}
	}
	floor := Floor{}
	if w.floored {
		floor = Floor{UID: "uid", Term: int64(w.floor)}
	}
	return Choose("uid", claims, floor, w.missing())
}

// missing reports whether a replica is not heard, or in doubt.
func (w *world) missing() bool {
	return slices.Contains(w.heard[:], false) || slices.Contains(w.doubted[:], true)
}

// say lets a replica say something, or returns false if too much is under way.
func (w *world) say(r int, m message) bool {
	q := &w.queues[r]
	if int(q.n) == len(q.messages) {
		return false
	}
	q.messages[q.n] = m
	q.n++
	return true
}

func (w *world) atRest() bool {
	for r := range replicas {
		if w.queues[r].n > 0 || !w.heard[r] || w.doubted[r] || w.deaf[r] || !w.streams[r] {
			return false
		}
	}
	return true
}

// steps returns what can happen next.
func (w *world) steps() (next []world) {
	try := func(f func(w *world) bool) {
		after := *w
		if f(&after) {
			next = append(next, after)
		}
	}
	for r := range replicas {
		me := int8(r + 1)
		try(func(w *world) bool { // takes the lease
			if w.holder != 0 || w.deaf[r] || w.term == lastTerm {
				return false
			}
			w.holder, w.term = me, w.term+1
			return w.say(r, message{w.term})
		})
		try(func(w *world) bool { // gives it up
			if w.holder != me || w.deaf[r] {
				return false
			}
			w.holder = 0
			return w.say(r, message{})
		})
		try(func(w *world) bool { // is suspended; its lease may expire later
			was := w.deaf[r]
			w.deaf[r] = true
			return !was
		})
		try(func(w *world) bool { // its lease expires
			if w.holder != me || !w.deaf[r] {
				return false
			}
			w.holder = 0
			return true
		})
		try(func(w *world) bool { // continues, and says what it has
			if !w.deaf[r] {
				return false
			}
			w.deaf[r] = false
			if w.holder == me {
				return true
			}
			return w.say(r, message{})
		})
		try(func(w *world) bool { // something arrives
			q := &w.queues[r]
			if q.n == 0 || w.deaf[r] || !w.streams[r] {
				return false
			}
			w.claims[r] = q.messages[0].term
			q.messages[0], q.messages[1] = q.messages[1], message{}
			q.n--
			w.heard[r] = true
			return true
		})
		try(func(w *world) bool { // is heard
			was := w.heard[r]
			w.heard[r] = true
			return !was && !w.deaf[r] && w.streams[r]
		})
		try(func(w *world) bool { // is not heard: it is deaf, or slow
			was := w.heard[r]
			w.heard[r] = false
			return was
		})
		try(func(w *world) bool { // is not heard out in time
			was := w.doubted[r]
			w.doubted[r] = true
			return !was
		})
		try(func(w *world) bool { // is heard out: nothing is under way
			was := w.doubted[r]
			w.doubted[r] = false
			return was && w.heard[r] && w.queues[r].n == 0
		})
		try(func(w *world) bool { // is forgotten
			if w.heard[r] || !w.streams[r] {
				return false
			}
			w.claims[r], w.streams[r], w.doubted[r] = 0, false, false
			return true
		})
		try(func(w *world) bool { // is followed anew, which begins with all that it has
			if w.deaf[r] {
				return false
			}
			w.streams[r], w.heard[r], w.queues[r] = true, true, queue{}
			if w.claims[r] = 0; w.holder == me {
				w.claims[r] = w.term
			}
			return true
		})
	}
	return next
}

// Whatever happens, what is shown never goes back, is never green without a replica that says so,
// and is right when all has arrived.
func TestExplore(t *testing.T) {
	start := world{heard: [replicas]bool{true, true}, streams: [replicas]bool{true, true}}
	kinds := map[Kind]bool{}
	seen, _, steps := machinetest.Explore(t, start, machinetest.Depth(), func(w *world, visit func(world, []string)) {
		for _, after := range w.steps() {
			choice := after.choose()
			var broken []string
			fails := func(is bool, what string) {
				if is {
					broken = append(broken, fmt.Sprintf("%s: %+v shows %+v", what, after, choice))
				}
			}
			shows := choice.Kind == Held || choice.Kind == Silent
			fails(choice.Kind == Absent, "it is absent")
			fails(choice.Kind == Unsure && !after.missing(), "all are heard")
			for r := range replicas {
				has := int(after.holder) == r+1
				fails(choice.Kind == Unclaimed && has && (!after.heard[r] || after.doubted[r]),
					"it has a replica, which is not heard")
			}
			fails(shows && after.floored && choice.Term < int64(after.floor), "it goes back")
			for r := range replicas {
				mine := choice.Replica == name(r)
				fails(choice.Kind == Held && mine && (!after.heard[r] || after.doubted[r] || int64(after.claims[r]) != choice.Term),
					"it is green and no replica says so")
				fails(choice.Kind == Held && after.heard[r] && int64(after.claims[r]) > choice.Term, "a later claim was heard")
				fails(choice.Kind == Silent && mine && after.heard[r] && !after.doubted[r], "it is not heard, and is")
			}
			if after.atRest() {
				right := choice.Kind == Unclaimed && after.holder == 0 ||
					choice.Kind == Held && after.holder > 0 && choice.Replica == name(int(after.holder-1))
				fails(!right, "at rest it is wrong")
				fails(choice.Contested, "at rest it is contested")
			}
			claimed := after.claims[0] > 0 && after.claims[1] > 0 && after.heard[0] && after.heard[1]
			fails(choice.Contested != claimed, "it is contested if two that are heard claim it")
			if shows {
				after.floored, after.floor = true, int8(choice.Term)
			}
			visit(after, broken)
		}
	})
	for w := range seen {
		kinds[w.choose().Kind] = true
	}
	NewWithT(t).Expect(kinds).To(And(HaveKey(Held), HaveKey(Silent), HaveKey(Unclaimed), HaveKey(Unsure)))
	t.Logf("%d worlds, %d steps", len(seen), steps)
}
