package ownwrites

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// The explorer runs sequences of events against a model of an API server with one object, and two
// informers: one of all objects, and one with a selector. It checks after each read
//
//   - that the read is not older than the client's own writes, and not older than the last read of
//     the same informer since then. A read of the API server may be later than the reads that
//     follow.
//   - that a read that has to wait waits for an event that the informer will receive.

// state is the object at a revision.
type state struct {
	exists, selected, terminating bool
	uid, version                  int
}

// exploredInformer has processed the events until a revision.
type exploredInformer struct {
	world    *world
	selects  bool // only objects that are selected
	fields   bool // by a field, not by labels
	polls    bool // lists now and then
	since    uint64
	position int // all events until this revision are in the store
	version  int // of the last event that it received, or of a list
	read     int // the revision of the last read, at least
	runs     bool
	arriving int // how many events arrive while the informer is looked at
	early    int // how many looks come before these
}

// looked lets an event arrive after a look.
func (i *exploredInformer) looked() {
	if i.early > 0 {
		i.early--
	} else if i.arriving > 0 {
		i.arriving--
		i.world.receive(slices.Index(i.world.informers, i))
	}
}

func (i *exploredInformer) view(revision int) state {
	s := i.world.history[revision]
	if i.selects && !s.selected {
		return state{}
	}
	return s
}

func (i *exploredInformer) ID() uint64    { return uint64(slices.Index(i.world.informers, i)) }
func (i *exploredInformer) Polls() bool   { return i.polls }
func (i *exploredInformer) Since() uint64 { return i.since }
func (i *exploredInformer) Version() string {
	defer i.looked()
	return fmt.Sprint(i.version)
}
func (i *exploredInformer) Stored(types.NamespacedName) (Object, bool) {
	defer i.looked()
	s := i.view(i.position)
	return Object{UID: types.UID(fmt.Sprint(s.uid)), Version: fmt.Sprint(s.version)}, s.exists
}
func (i *exploredInformer) Covers(_, _ string) bool { return true }
func (i *exploredInformer) HasSelectors() bool      { return i.selects }
func (i *exploredInformer) Selects(labels map[string]string) Selection {
	if i.fields {
		return SelectionUnknown
	}
	if i.selects && labels["selected"] == "" {
		return NotSelected
	}
	return Selected
}

// next returns the revision of the next event that the informer will receive, 0 if there is none.
func (i *exploredInformer) next() int {
	for revision := i.position + 1; revision < len(i.world.history); revision++ {
		if i.view(revision) != i.view(revision-1) {
			return revision
		}
	}
	return 0
}

// world is the API server, the informers, and the client's writes.
type world struct {
	history   []state // the state of the object at each revision; other objects change at the others
	uids      int
	informers []*exploredInformer
	writes    *Writes
	written   int // the revision of the client's last write
}

var exploredKind, exploredKey = schema.GroupKind{Kind: "Thing"}, types.NamespacedName{Namespace: "a", Name: "x"}

func newWorld() *world {
	w := &world{history: make([]state, 10)} // revisions begin with two digits, and are compared as numbers
	w.informers = []*exploredInformer{{world: w}, {world: w, selects: true}, {world: w, selects: true, fields: true},
		{world: w, polls: true}}
	w.writes = New(func(schema.GroupKind) (running []Informer) {
		for _, i := range w.informers {
			if i.runs {
				running = append(running, i)
			}
		}
		return running
	})
	w.writes.Enable()
	for n := range w.informers {
		w.restart(n)
	}
	return w
}

func (w *world) now() int     { return len(w.history) - 1 }
func (w *world) state() state { return w.history[w.now()] }

// happen adds a revision.
func (w *world) happen(s state) {
	w.history = append(w.history, s)
	if s.exists && s != w.history[w.now()-1] {
		w.history[w.now()].version = w.now()
	}
}

// restart makes an informer begin again with a list.
func (w *world) restart(n int) {
	i := w.informers[n]
	i.since, i.runs = w.writes.Now(), true
	i.position, i.version, i.read = w.now(), w.now(), 0
}

// left returns the own write that left a state.
func left(s state) Write {
	return Write{
		Object: Object{UID: types.UID(fmt.Sprint(s.uid)), Version: fmt.Sprint(s.version)},
		Labels: labelsOf(s),
	}
}

// deletionOf returns the own write that deleted the object of a state. version is what is known of
// it, 0 for nothing.
func deletionOf(s state, version int) Write {
	write := Write{Object: Object{UID: types.UID(fmt.Sprint(s.uid))}, Gone: true}
	if version > 0 {
		write.Version = fmt.Sprint(version)
	}
	return write
}

func labelsOf(s state) map[string]string {
	if s.selected {
		return map[string]string{"selected": "yes"}
	}
	return map[string]string{}
}

func (w *world) add(key types.NamespacedName, write Write) {
	w.writes.Add(exploredKind, key, write)
	w.written = w.now()
}

// A step is possible if it returns true.
var steps = map[string]func(*world) bool{
	"other object": func(w *world) bool { w.happen(w.state()); return true },
	"create":       func(w *world) bool { return w.create(true, false) && w.recorded() },
	"create unselected": func(w *world) bool {
		return w.create(false, false) && w.recorded()
	},
	"create with finalizer": func(w *world) bool { return w.create(true, true) && w.recorded() },
	"someone creates":       func(w *world) bool { return w.create(true, false) },
	"update":                func(w *world) bool { return w.update(false) && w.recorded() },
	"relabel":               func(w *world) bool { return w.update(true) && w.recorded() },
	"someone updates":       func(w *world) bool { return w.update(false) },
	"someone relabels":      func(w *world) bool { return w.update(true) },
	"unknown update": func(w *world) bool {
		return w.update(true) && w.unknown(exploredKey)
	},
	"unknown, not executed": func(w *world) bool { return w.unknown(exploredKey) },
	"delete what was seen": func(w *world) bool {
		version := w.state().version
		return w.delete() && w.deleted(version)
	},
	"delete by name": func(w *world) bool {
		known := 0 // what the informers have of it
		for _, object := range w.writes.Peek(exploredKind, exploredKey) {
			if object.UID == types.UID(fmt.Sprint(w.state().uid)) {
				_, _ = fmt.Sscan(object.Version, &known)
			}
		}
		return w.delete() && w.deleted(known)
	},
	"scale": func(w *world) bool {
		possible := w.update(false)
		if possible {
			write := left(w.state())
			write.Labels = nil // a Scale has other ones
			w.add(exploredKey, write)
		}
		return possible
	},
	"update and delete at once": func(w *world) bool {
		possible := w.update(true)
		updated := w.state()
		if possible = possible && w.delete() && !w.state().exists; possible {
			w.add(exploredKey, deletionOf(updated, updated.version))
			w.add(exploredKey, left(updated))
		}
		return possible
	},
	"two updates at once": func(w *world) bool {
		possible := w.update(true)
		first := w.state()
		if possible = possible && w.update(true); possible {
			w.add(exploredKey, left(w.state()))
			w.add(exploredKey, left(first))
		}
		return possible
	},
	"update, and unknown one at once": func(w *world) bool {
		possible := w.update(true)
		updated := w.state()
		if possible = possible && w.update(true); possible {
			w.unknown(exploredKey)
			w.add(exploredKey, left(updated))
		}
		return possible
	},
	"update, and delete by name at once": func(w *world) bool {
		possible := w.update(true)
		updated := w.state()
		if possible = possible && w.delete() && !w.state().exists; possible {
			w.add(exploredKey, deletionOf(updated, 0))
			w.add(exploredKey, left(updated))
		}
		return possible
	},
	"delete and create at once": func(w *world) bool {
		before := w.state()
		possible := w.delete() && w.create(true, false)
		if possible {
			w.recorded()
			w.add(exploredKey, deletionOf(before, before.version))
		}
		return possible
	},
	"someone deletes":        func(w *world) bool { return w.delete() },
	"delete all":             func(w *world) bool { return w.delete() && w.unknown(types.NamespacedName{Namespace: "a"}) },
	"list of the fourth":     func(w *world) bool { return w.bookmark(3) },
	"event at the third":     func(w *world) bool { return w.receive(2) },
	"event at the first":     func(w *world) bool { return w.receive(0) },
	"event at the second":    func(w *world) bool { return w.receive(1) },
	"bookmark at the second": func(w *world) bool { return w.bookmark(1) },
	"restart the first":      func(w *world) bool { w.restart(0); return true },
	"stop the second":        func(w *world) bool { was := w.informers[1].runs; w.informers[1].runs = false; return was },
	"start the second": func(w *world) bool {
		was := w.informers[1].runs
		if !was {
			w.restart(1)
		}
		return !was
	},
}

func (w *world) create(selected, finalizer bool) bool {
	if w.state().exists {
		return false
	}
	w.uids++
	w.happen(state{exists: true, selected: selected, terminating: finalizer, uid: w.uids})
	return true
}

func (w *world) update(relabel bool) bool {
	s := w.state()
	if !s.exists {
		return false
	}
	s.selected = s.selected != relabel
	s.version = 0 // so that it is another one
	w.happen(s)
	return true
}

// delete deletes the object, or removes its finalizer first.
func (w *world) delete() bool {
	s := w.state()
	if !s.exists {
		return false
	}
	if s.terminating {
		s.terminating, s.version = false, 0
		w.happen(s)
		return true
	}
	w.happen(state{})
	return true
}

func (w *world) recorded() bool { w.add(exploredKey, left(w.state())); return true }

func (w *world) deleted(known int) bool {
	if w.state().exists {
		return w.recorded()
	}
	w.add(exploredKey, deletionOf(w.history[w.now()-1], known))
	return true
}

func (w *world) unknown(key types.NamespacedName) bool {
	w.add(key, Write{Unknown: true})
	return true
}

func (w *world) receive(n int) bool {
	i := w.informers[n]
	next := i.next()
	if next == 0 || !i.runs {
		return false
	}
	i.position, i.version = next, next
	return true
}

func (w *world) bookmark(n int) bool {
	i := w.informers[n]
	if i.version == w.now() || !i.runs {
		return false
	}
	i.position, i.version = w.now(), w.now()
	return true
}

// read reads from an informer, and returns what is wrong with that. arriving is how many events
// arrive meanwhile.
func (w *world) read(n, arriving int) error {
	i := w.informers[n]
	if !i.runs {
		return nil
	}
	i.arriving, i.early = arriving, (len(w.history)+i.position)%6
	defer func() { i.arriving, i.early = 0, 0 }()
	required := w.writes.BeforeGet(exploredKind, exploredKey)
	defer required.Done()
	judgement := required.Judge(i)
	i.looked()
	shown := i.view(i.position)
	i.looked()
	switch {
	case judgement.Ready && !required.Still() && arriving > 0:
		return nil // the read begins again
	case judgement.Ready && !required.Still():
		return errors.New("the read begins again, although nothing has happened")
	case judgement.Ask:
		shown = i.view(w.now())
		required.Listed(fmt.Sprint(w.now()), func(types.NamespacedName) (Object, map[string]string, bool) {
			return Object{UID: types.UID(fmt.Sprint(shown.uid)), Version: fmt.Sprint(shown.version)}, labelsOf(shown),
				shown.exists
		})
	case !judgement.Ready:
		if (i.next() == 0 || i.polls) && arriving == 0 {
			return fmt.Errorf("the read waits for %+v, and no event will come", judgement)
		}
		return nil
	}
	for revision := max(w.written, i.read); revision <= w.now(); revision++ {
		if i.view(revision) == shown {
			if judgement.Ready {
				i.read = revision
			}
			return nil
		}
	}
	return fmt.Errorf("informer %d shows %+v, which is older than revision %d", n, shown, max(w.written, i.read))
}

// step does a step. With reads, both informers are read after that.
func (w *world) step(name string, reads bool) error {
	switch name {
	case "read the first":
		return w.read(0, 0)
	case "read the second":
		return w.read(1, 0)
	case "read the first while events arrive":
		return w.read(0, 1+len(w.history)%2)
	case "read the second while events arrive":
		return w.read(1, 1+len(w.history)%2)
	}
	if !steps[name](w) || !reads {
		return nil
	}
	return errors.Join(w.read(0, 0), w.read(1, 0), w.read(2, 0), w.read(3, 0))
}

// settle lets all events arrive. Then no requirement is left.
func (w *world) settle() error {
	for n := range w.informers {
		for w.receive(n) {
		}
		w.bookmark(n)
		if err := w.read(n, 0); err != nil {
			return err
		}
	}
	w.writes.forget(exploredKind, exploredKey, types.NamespacedName{Namespace: "a"})
	if w.writes.Any() {
		return fmt.Errorf("all informers have all events, but writes are remembered: %+v", w.writes.kinds[exploredKind])
	}
	return nil
}

// TestExplore runs all short sequences, and many long ones at random.
func TestExplore(t *testing.T) {
	names := slices.Sorted(maps.Keys(steps))
	run := func(sequence []string, reads bool) error {
		w := newWorld()
		for n, name := range sequence {
			if err := w.step(name, reads); err != nil {
				return fmt.Errorf("%w after %s", err, strings.Join(sequence[:n+1], ", "))
			}
		}
		if err := w.settle(); err != nil {
			return fmt.Errorf("%w at the end of %s", err, strings.Join(sequence, ", "))
		}
		return nil
	}
	var all func(sequence []string, depth int) error
	all = func(sequence []string, depth int) error {
		if depth == 0 {
			return run(sequence, true)
		}
		for _, name := range names {
			if err := all(append(sequence, name), depth-1); err != nil {
				return err
			}
		}
		return nil
	}
	g := NewWithT(t)
	for depth := 1; depth <= 3; depth++ {
		g.Expect(all(nil, depth)).To(Succeed())
	}
	names = append(names, "read the first", "read the second", "read the second", "read the first while events arrive",
		"read the second while events arrive", "event at the second")
	sequences := 60_000
	if testutil.RaceEnabled {
		sequences = 10_000
	}
	random := rand.New(rand.NewPCG(1, 2))
	for n := range sequences {
		sequence := make([]string, 4+random.IntN(20))
		for i := range sequence {
			sequence[i] = names[random.IntN(len(names))]
		}
		g.Expect(run(sequence, n%2 == 0)).To(Succeed())
	}
}
