package members

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// model is what handlers would know: which informer feeds them the objects of each namespace.
type model struct {
	config   Config
	universe []string        // of namespaces
	held     map[string]bool // whether it feeds
	recorded map[string]bool // namespaces with something on record
	memory                   // of worlds with versions and time
}

func newModel(config Config, universe []string) *model {
	return &model{
		config:   config,
		universe: universe,
		held:     map[string]bool{},
		recorded: map[string]bool{"a": true, All: config.Kind != Allowed}, // in a namespace, and in none
		memory:   memory{now: time.Unix(1e9, 0)},
	}
}

func (m *model) clone() *model {
	c := *m
	c.held, c.recorded = maps.Clone(m.held), maps.Clone(m.recorded)
	return &c
}

// apply does what the machine says, and returns what is wrong.
func (m *model) apply(e Effect, v *view) error {
	fed, held := m.held[e.Namespace]
	named := slices.Contains(v.Names, e.Namespace)
	switch e.Do {
	case Hold:
		if held {
			return fmt.Errorf("%q is held twice", e.Namespace)
		}
		if m.config.Kind == Allowed && e.Namespace != All && !v.Informers[All].Forbidden {
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
		if e.Namespace == All && !v.caughtUp {
			return fmt.Errorf("all namespaces feed handlers that know more")
		}
		if v.behind[e.Namespace] {
			return fmt.Errorf("%q feeds handlers that know more", e.Namespace)
		}
		if i := v.Informers[e.Namespace]; m.config.Kind == Allowed && e.Namespace != All && i.Version != "" && !i.Forbidden &&
			len(i.Version) < len(v.Received[e.Namespace]) {
			return fmt.Errorf("%q feeds handlers that know more", e.Namespace)
		}
		m.held[e.Namespace] = true
		delete(m.recorded, e.Namespace)
		if e.Namespace == All {
			clear(m.recorded)
		}
	case Keep:
		i, all := v.Informers[e.Namespace], v.Informers[All]
		switch {
		case !fed:
			return fmt.Errorf("%q does not feed", e.Namespace)
		case v.Informers == nil, v.ClusterScoped: // the set ends
		case e.Namespace == All && !i.Forbidden:
			return fmt.Errorf("all namespaces no longer feed, although they are not forbidden")
		case m.config.Kind == Allowed && e.Namespace != All && all.Synced && !v.follows &&
			m.places(v) <= m.config.Max && !i.Forbidden:
			return fmt.Errorf("%q pauses, although all namespaces do not follow", e.Namespace)
		case m.config.Kind == Allowed && e.Namespace != All && !all.Synced && !i.Forbidden && m.places(v) <= m.config.Max:
			return fmt.Errorf("%q no longer feeds, although it is not forbidden", e.Namespace)
		}
		m.held[e.Namespace] = false
		if e.Namespace == All && v.ClusterScoped && len(m.universe) == 1 { // else it doubles the states
			m.recorded[All] = true // the objects have no namespace
		}
		for _, namespace := range m.universe {
			if e.Namespace == All || e.Namespace == namespace {
				m.recorded[namespace] = true
			}
		}
	case Delete:
		switch {
		case e.Namespace == All || fed || m.held[All]:
			return fmt.Errorf("objects of %q are deleted while an informer feeds them", e.Namespace)
		case m.config.Kind != Allowed && v.Known && !named:
		case v.gone[e.Namespace]:
		default:
			return fmt.Errorf("objects of %q are deleted, which may be there", e.Namespace)
		}
		delete(m.recorded, e.Namespace)
	case Release:
		if !held || fed {
			return fmt.Errorf("%q is released while it feeds, or without being held", e.Namespace)
		}
		i, full := v.Informers[e.Namespace], m.places(v) >= m.config.Max
		over := m.places(v) > m.config.Max
		switch {
		case v.Informers == nil, v.ClusterScoped: // the set ends
		case m.config.Kind != Allowed && (!v.Known || named):
			return fmt.Errorf("%q leaves for no reason", e.Namespace)
		case m.config.Kind != Allowed, m.held[All], over && !i.denied():
		case named || !v.Known || !i.Forbidden:
			return fmt.Errorf("%q is released, although it may be in the set", e.Namespace)
		case i.Served && !v.gone[e.Namespace] && !full:
			return fmt.Errorf("%q leaves because of permission", e.Namespace)
		}
		delete(m.held, e.Namespace)
	}
	return nil
}

// places returns how many held namespaces count for the limit.
func (m *model) places(v *view) (count int) {
	for namespace := range m.held {
		if i := v.Informers[namespace]; namespace != All && (!i.Forbidden || i.Served) {
			count++
		}
	}
	return count
}

// atRest returns what is wrong when the machine has nothing to do.
func (m *model) atRest(v *view, machine *Machine) error {
	all := v.Informers[All]
	switch {
	case v.ClusterScoped:
		if len(m.held) > 0 {
			return fmt.Errorf("%v are held, and there are no namespaces", m.held)
		}
	case m.config.Kind != Allowed && v.Known:
		for _, namespace := range m.universe {
			fed, held := m.held[namespace]
			if held != slices.Contains(v.Names, namespace) {
				return fmt.Errorf("%q held: %t", namespace, held)
			}
			buried := v.gone[namespace] && v.Informers[namespace].Forbidden
			if held && fed == buried && !v.behind[namespace] {
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
	case all.Synced && v.caughtUp:
		if !m.held[All] || len(m.held) != 1 || len(m.recorded) > 0 {
			return fmt.Errorf("one informer has everything, and %v feed, %v is on record", m.held, m.recorded)
		}
	case all.Forbidden && v.Known:
		waiting, idle := 0, 0
		for _, namespace := range m.universe {
			named := slices.Contains(v.Names, namespace)
			i := v.Informers[namespace]
			fed, has := m.held[namespace]
			switch {
			case has && fed == (v.gone[namespace] && i.Forbidden) && !v.behind[namespace]:
				return fmt.Errorf("%q feeds: %t", namespace, fed)
			case has && !named && i.Forbidden && (!i.Served || v.gone[namespace]):
				return fmt.Errorf("%q is held for nothing", namespace)
			case !has && v.gone[namespace] && !named && m.recorded[namespace]:
				return fmt.Errorf("handlers know objects in %q, which is gone", namespace)
			case !has && named:
				waiting++
			case has && !named && i.Forbidden:
				idle++
			}
		}
		if waiting > 0 && (m.places(v) < m.config.Max || idle > 0) {
			return fmt.Errorf("%d wait, while only %d need their place", waiting, m.places(v))
		}
		if machine.Outcome().LeftOut != waiting {
			return fmt.Errorf("%d wait, and %d are said to", waiting, machine.Outcome().LeftOut)
		}
	}
	for namespace, feeds := range m.held { // what has paused for an informer that does not take over
		if buried := v.gone[namespace] && v.Informers[namespace].Forbidden; m.config.Kind == Allowed && !m.held[All] &&
			namespace != All && !feeds && !buried && !v.behind[namespace] {
			return fmt.Errorf("%q does not feed", namespace)
		}
	}
	if count := m.places(v); m.config.Kind == Allowed && count > m.config.Max {
		return fmt.Errorf("%d are held", count)
	}
	for namespace, feeds := range m.held {
		if machine.Feeds(namespace) != feeds {
			return fmt.Errorf("%q feeds: %t", namespace, feeds)
		}
	}
	return nil
}

// concluded returns what is wrong with what the machine says of the set.
func (m *model) concluded(v *view, machine *Machine, wasDecided bool) error {
	all, outcome := v.Informers[All], machine.Outcome()
	waits, kept := m.config.Kind == Allowed && all.Synced && !m.held[All], 0
	for namespace := range m.held {
		waits = waits || v.behind[namespace] && !m.held[namespace]
	}
	for _, unsure := range v.unsure {
		waits = waits || unsure
	}
	for namespace := range m.recorded {
		if _, held := m.held[namespace]; m.config.Kind == Allowed && !held && !machine.taking && namespace != All {
			kept++
		}
	}
	known, shows := v.Known || !v.Awaited, len(machine.Members(v.Informers)) > 0
	decided := wasDecided
	switch {
	case m.config.Kind != Allowed || v.ClusterScoped:
		decided = known
	case m.held[All]:
		decided = true
	case machine.taking:
		decided = decided && shows
	case all.Forbidden:
		decided = known
	case !shows:
		decided = all.NotServed
	}
	switch {
	case outcome.Decided != decided:
		return fmt.Errorf("it is decided which namespaces there are: %t", outcome.Decided)
	case waits != (outcome.Again > 0), outcome.Again > lookAtLast:
		return fmt.Errorf("it looks again after %v", outcome.Again)
	case outcome.Kept != kept:
		return fmt.Errorf("%d are kept, and %d are said to be", kept, outcome.Kept)
	case outcome.LeftOut > 0 && (!all.Forbidden || !v.Known):
		return fmt.Errorf("%d are left out, although that is not known", outcome.LeftOut)
	case machine.taking && (v.caughtUp || v.overdue || !all.Synced):
		return errors.New("it still takes over")
	case m.config.Kind == Allowed && !m.held[All] && !machine.taking && all.Synced && v.follows && !v.ClusterScoped:
		return errors.New("it does not take over")
	}
	return nil
}

// world is what may be known next. Before each step it makes the machine's input, and what follows
// from it.
type world interface {
	step(machine *Machine, model *model) (*view, []Effect)
}

// explore visits every state that the machine can reach, whatever of worlds is known next, and
// returns how many there are.
func explore(t *testing.T, config Config, universe []string, worlds []world) int {
	t.Helper()
	type node struct {
		machine Machine
		model   *model
		path    string
	}
	key := func(n node) (k [5]int) { // numbers, because printing maps takes most of the time
		for i, name := range append([]string{All}, universe...) {
			_, held := n.machine.held[name]
			bits := []bool{held, n.machine.held[name], n.machine.places[name], n.machine.buried[name],
				n.model.recorded[name], n.machine.had[name], n.model.had[name]}
			for bit, set := range bits {
				if set {
					k[i] |= 1 << bit
				}
			}
		}
		for bit, set := range []bool{n.machine.taking, n.machine.outcome.Decided, n.machine.synced, n.model.synced} {
			if set {
				k[3] |= 1 << bit
			}
		}
		k[4] = len(n.machine.mark)<<8 | len(n.model.mark)
		return k
	}
	first := node{New(config), newModel(config, universe), ""}
	seen, open := map[[5]int]bool{key(first): true}, []node{first}
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
		for _, world := range worlds {
			next := node{cloneOf(n.machine), n.model.clone(), ""}
			var steps [][]Effect
			path := func() string { return fmt.Sprintf("%s\n%+v %+v\n  %v", n.path, config, world, steps) }
			for round := 0; ; round++ {
				took, wasDecided := next.machine.taking, next.machine.outcome.Decided
				v, effects := world.step(&next.machine, next.model)
				steps = append(steps, effects)
				if took && !next.machine.taking && v.Informers[All].Synced && !v.caughtUp && !v.overdue && !v.ClusterScoped {
					t.Fatalf("it no longer takes over%s", path())
				}
				for _, effect := range effects {
					if err := next.model.apply(effect, v); err != nil {
						t.Fatalf("%v%s", err, path())
					}
				}
				if len(effects) == 0 {
					err := next.model.concluded(v, &next.machine, wasDecided)
					if err == nil && !next.machine.taking {
						err = next.model.atRest(v, &next.machine)
					}
					if err != nil {
						t.Fatalf("%v%s", err, path())
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
		}
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
			if err := stopped.model.apply(effect, &view{}); err != nil {
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
	return m // and had is replaced, not changed
}
