package members

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// universe is the namespaces of the explorer.
var universe = []string{"a", "b"}

// model is what handlers would know: which informer feeds them the objects of each namespace.
type model struct {
	config   Config
	held     map[string]bool // whether it feeds
	recorded map[string]bool // namespaces with something on record
}

func (m *model) clone() *model {
	return &model{m.config, maps.Clone(m.held), maps.Clone(m.recorded)}
}

// apply does what the machine says, and returns what is wrong.
func (m *model) apply(e Effect, facts Facts) error {
	fed, held := m.held[e.Namespace]
	named := slices.Contains(facts.Names, e.Namespace)
	switch e.Do {
	case Hold:
		if held {
			return fmt.Errorf("%q is held twice", e.Namespace)
		}
		if m.config.Kind == Allowed && e.Namespace != All && !facts.Informers[All].Forbidden {
			return fmt.Errorf("%q is tried although all namespaces may be allowed", e.Namespace)
		}
		m.held[e.Namespace] = false
	case Feed:
		if !held || fed {
			return fmt.Errorf("%q feeds twice, or without being held", e.Namespace)
		}
		for other, feeds := range m.held {
			if feeds && (other == All || e.Namespace == All) {
				return fmt.Errorf("%q and %q feed the same objects", other, e.Namespace)
			}
		}
		if e.Namespace == All && !facts.CaughtUp {
			return fmt.Errorf("all namespaces feed handlers that know more")
		}
		if facts.Informers[e.Namespace].Behind {
			return fmt.Errorf("%q feeds handlers that know more", e.Namespace)
		}
		m.held[e.Namespace] = true
		delete(m.recorded, e.Namespace)
		if e.Namespace == All {
			clear(m.recorded)
		}
	case Keep:
		i, all := facts.Informers[e.Namespace], facts.Informers[All]
		switch {
		case !fed:
			return fmt.Errorf("%q does not feed", e.Namespace)
		case facts.Informers == nil: // the set ends
		case e.Namespace == All && !i.Forbidden:
			return fmt.Errorf("all namespaces no longer feed, although they are not forbidden")
		case m.config.Kind == Allowed && e.Namespace != All && all.Synced && !facts.Follows &&
			m.places(facts) <= m.config.Max && !i.Forbidden:
			return fmt.Errorf("%q pauses, although all namespaces do not follow", e.Namespace)
		case m.config.Kind == Allowed && e.Namespace != All && !all.Synced && !i.Forbidden && m.places(facts) <= m.config.Max:
			return fmt.Errorf("%q no longer feeds, although it is not forbidden", e.Namespace)
		}
		m.held[e.Namespace] = false
		for _, namespace := range universe {
			if e.Namespace == All || e.Namespace == namespace {
				m.recorded[namespace] = true
			}
		}
	case Delete:
		switch {
		case e.Namespace == All || fed || m.held[All]:
			return fmt.Errorf("objects of %q are deleted while an informer feeds them", e.Namespace)
		case m.config.Kind == Labelled && facts.Known && !named:
		case facts.Gone[e.Namespace]:
		default:
			return fmt.Errorf("objects of %q are deleted, which may be there", e.Namespace)
		}
		delete(m.recorded, e.Namespace)
	case Release:
		if !held || fed {
			return fmt.Errorf("%q is released while it feeds, or without being held", e.Namespace)
		}
		i, full := facts.Informers[e.Namespace], m.places(facts) >= m.config.Max
		over := m.places(facts) > m.config.Max
		switch {
		case facts.Informers == nil: // the set ends
		case m.config.Kind != Allowed && (!facts.Known || named):
			return fmt.Errorf("%q leaves for no reason", e.Namespace)
		case m.config.Kind != Allowed, m.held[All], over && !i.denied():
		case named || !facts.Known || !i.Forbidden:
			return fmt.Errorf("%q is released, although it may be in the set", e.Namespace)
		case i.Served && !facts.Gone[e.Namespace] && !full:
			return fmt.Errorf("%q leaves because of permission", e.Namespace)
		}
		delete(m.held, e.Namespace)
	}
	return nil
}

// places returns how many held namespaces count for the limit.
func (m *model) places(facts Facts) (count int) {
	for namespace := range m.held {
		if i := facts.Informers[namespace]; namespace != All && (!i.Forbidden || i.Served) {
			count++
		}
	}
	return count
}

// facts are those of the model's informers, whose states are in informers.
func (m *model) facts(known bool, names []string, gone map[string]bool, informers map[string]Informer,
	pace pace) Facts {
	facts := Facts{
		Known:     known,
		Names:     names,
		Gone:      gone,
		Informers: map[string]Informer{},
		Follows:   pace.follows,
		CaughtUp:  pace.caughtUp,
		Overdue:   pace.overdue,
	}
	for namespace := range m.held {
		i := informers[namespace]
		i.Behind = i.Synced && !pace.caughtUp
		facts.Informers[namespace] = i
	}
	facts.Recorded = slices.Sorted(maps.Keys(m.recorded))
	return facts
}

// atRest returns what is wrong when the machine has nothing to do.
func (m *model) atRest(facts Facts, machine *Machine) error {
	all := facts.Informers[All]
	switch {
	case m.config.Kind != Allowed && facts.Known:
		for _, namespace := range universe {
			fed, held := m.held[namespace]
			if held != slices.Contains(facts.Names, namespace) {
				return fmt.Errorf("%q held: %t", namespace, held)
			}
			buried := facts.Gone[namespace] && facts.Informers[namespace].Forbidden
			if held && fed == buried && !facts.Informers[namespace].Behind {
				return fmt.Errorf("%q feeds: %t", namespace, fed)
			}
			if held && buried && m.recorded[namespace] {
				return fmt.Errorf("%q is gone, and handlers know its objects", namespace)
			}
			if !held && m.recorded[namespace] {
				return fmt.Errorf("%q has left, and handlers know its objects", namespace)
			}
		}
	case m.config.Kind != Allowed:
	case all.Synced && facts.CaughtUp:
		if !m.held[All] || len(m.held) != 1 || len(m.recorded) > 0 {
			return fmt.Errorf("one informer has everything, and %v feed, %v is on record", m.held, m.recorded)
		}
	case all.Forbidden && facts.Known:
		waiting, idle := 0, 0
		for _, namespace := range universe {
			named := slices.Contains(facts.Names, namespace)
			i := facts.Informers[namespace]
			fed, has := m.held[namespace]
			switch {
			case has && fed == (facts.Gone[namespace] && i.Forbidden) && !i.Behind:
				return fmt.Errorf("%q feeds: %t", namespace, fed)
			case has && !named && i.Forbidden && (!i.Served || facts.Gone[namespace]):
				return fmt.Errorf("%q is held for nothing", namespace)
			case !has && facts.Gone[namespace] && !named && m.recorded[namespace]:
				return fmt.Errorf("handlers know objects in %q, which is gone", namespace)
			case !has && named:
				waiting++
			case has && !named && i.Forbidden:
				idle++
			}
		}
		if waiting > 0 && (m.places(facts) < m.config.Max || idle > 0) {
			return fmt.Errorf("%d wait, while only %d need their place", waiting, m.places(facts))
		}
		if machine.LeftOut(facts) != waiting {
			return fmt.Errorf("%d wait, and %d are said to", waiting, machine.LeftOut(facts))
		}
	}
	if left := machine.LeftOut(facts); left > 0 && (!all.Forbidden || !facts.Known) {
		return fmt.Errorf("%d are left out, although that is not known", left)
	}
	if count := m.places(facts); m.config.Kind == Allowed && count > m.config.Max {
		return fmt.Errorf("%d are held", count)
	}
	for namespace, feeds := range m.held {
		if machine.Feeds(namespace) != feeds {
			return fmt.Errorf("%q feeds: %t", namespace, feeds)
		}
	}
	return nil
}

// pace is how far informers are.
type pace struct{ follows, caughtUp, overdue bool }

// worlds calls f with everything that may be known.
func worlds(kind Kind, f func(known bool, names []string, gone map[string]bool, informers map[string]Informer,
	pace pace)) {
	states := []Informer{{}, {Synced: true, Served: true}, {Forbidden: true}, {Forbidden: true, Served: true},
		{Served: true}}
	allStates := states[:1]
	if kind == Allowed {
		allStates = states
	}
	sets := [][]string{nil, {"a"}, {"b"}, {"a", "b"}}
	if kind == Listed {
		sets = sets[3:]
	}
	for _, names := range sets {
		for _, known := range []bool{false, true} {
			for _, gone := range [][]string{nil, {"a"}, {"a", "b"}} {
				isGone := map[string]bool{}
				for _, namespace := range gone {
					isGone[namespace] = true
				}
				for _, ofAll := range allStates {
					for _, ofA := range states {
						for _, ofB := range states {
							for _, pace := range []pace{{}, {follows: true}, {overdue: true}, {follows: true, caughtUp: true}} {
								f(known || kind == Listed, names, isGone,
									map[string]Informer{All: ofAll, "a": ofA, "b": ofB}, pace)
							}
						}
					}
				}
			}
		}
	}
}

// In every state that the machine can reach, whatever is known next: no object comes from two
// informers, nothing is deleted that may be there, and what the machine does ends in what the set
// is.
func TestExplore(t *testing.T) {
	configs := []Config{{Kind: Listed}, {Kind: Labelled}, {Kind: Allowed, Max: 1}, {Kind: Allowed, Max: 2}}
	if testutil.RaceEnabled {
		configs = configs[:2] // the others take a minute, and nothing here runs at the same time
	}
	for _, config := range configs {
		explored := explore(t, config)
		t.Logf("%+v: %d states", config, explored)
	}
}

func explore(t *testing.T, config Config) int {
	t.Helper()
	type node struct {
		machine Machine
		model   *model
		path    string
	}
	key := func(n node) (k [4]int) { // numbers, because printing maps takes most of the time
		for i, name := range append([]string{All}, universe...) {
			_, held := n.machine.held[name]
			bits := []bool{held, n.machine.held[name], n.machine.places[name], n.machine.buried[name], n.model.recorded[name]}
			for bit, set := range bits {
				if set {
					k[i] |= 1 << bit
				}
			}
		}
		if n.machine.taking {
			k[3] = 1
		}
		return k
	}
	first := node{New(config), &model{config, map[string]bool{}, map[string]bool{"a": true}}, ""}
	seen, open := map[[4]int]bool{key(first): true}, []node{first}
	visit := func(n node, path func() string) {
		if k := key(n); !seen[k] {
			seen[k] = true
			n.path = path()
			open = append(open, n)
		}
	}
	for len(open) > 0 {
		n := open[0]
		open = open[1:]
		worlds(config.Kind, func(known bool, names []string, gone map[string]bool, informers map[string]Informer,
			pace pace) {
			next := node{cloneOf(n.machine), n.model.clone(), ""}
			var steps [][]Effect
			path := func() string {
				return fmt.Sprintf("%s\n%+v known=%t names=%v gone=%v informers=%v pace=%+v\n  %v", n.path, config, known,
					names, gone, informers, pace, steps)
			}
			for round := 0; ; round++ {
				facts := next.model.facts(known, names, gone, informers, pace)
				effects := next.machine.Step(facts)
				steps = append(steps, effects)
				for _, effect := range effects {
					if err := next.model.apply(effect, facts); err != nil {
						t.Fatalf("%v%s", err, path())
					}
				}
				if len(effects) == 0 {
					if next.machine.TakesOver() && (pace.caughtUp || pace.overdue || !informers[All].Synced) {
						t.Fatalf("it still takes over%s", path())
					}
					if !next.machine.TakesOver() {
						if err := next.model.atRest(facts, &next.machine); err != nil {
							t.Fatalf("%v%s", err, path())
						}
					}
					break
				}
				if round > 4 {
					t.Fatalf("it does not come to rest%s", path())
				}
				if round == 0 { // the world may be another one before the next step
					visit(node{cloneOf(next.machine), next.model.clone(), ""}, path)
				}
			}
			visit(next, path)
		})
		if late := (node{cloneOf(n.machine), n.model.clone(), ""}); !late.model.held[All] {
			for _, namespace := range universe { // a handler comes late, which knows objects from before
				if !late.model.held[namespace] {
					late.model.recorded[namespace] = true
				}
			}
			visit(late, func() string { return n.path + "\na handler comes late" })
		}
		stopped := node{cloneOf(n.machine), n.model.clone(), ""}
		for _, effect := range stopped.machine.Stop() {
			if err := stopped.model.apply(effect, Facts{}); err != nil {
				t.Fatalf("stopping: %v%s", err, n.path)
			}
		}
		if len(stopped.model.held) > 0 {
			t.Fatalf("stopping leaves %v%s", stopped.model.held, n.path)
		}
	}
	return len(seen)
}

func cloneOf(m Machine) Machine {
	m.held, m.places, m.buried = maps.Clone(m.held), maps.Clone(m.places), maps.Clone(m.buried)
	return m
}

// What is only tried is no member of a set of allowed namespaces, unless it was allowed once.
func TestMembers(t *testing.T) {
	g := NewWithT(t)
	informers := map[string]Informer{"a": {Forbidden: true}, "b": {Forbidden: true, Served: true}, "c": {}}
	for kind, want := range map[Kind][]string{Listed: {"a", "b", "c"}, Labelled: {"a", "b", "c"}, Allowed: {"b", "c"}} {
		m := New(Config{Kind: kind, Max: 3})
		facts := Facts{
			Known:     true,
			Names:     []string{"a", "b", "c"},
			Informers: map[string]Informer{All: {Forbidden: true}},
		}
		for len(m.Step(facts)) > 0 {
		}
		g.Expect(m.Members(informers)).To(Equal(want))
	}
	m := New(Config{Kind: Allowed, Max: 3})
	m.Step(Facts{})
	m.Step(Facts{Informers: map[string]Informer{All: {Synced: true}}, Follows: true, CaughtUp: true})
	g.Expect(m.Members(nil)).To(Equal([]string{All}))
}
