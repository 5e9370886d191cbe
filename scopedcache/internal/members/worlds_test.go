package members

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/internal/versions"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// states are those of an informer.
var states = []Informer{{}, {Synced: true, Served: true}, {Forbidden: true}, {Forbidden: true, Served: true},
	{Served: true}}

// statesOfAll are those of the informer of all namespaces.
func statesOfAll(kind Kind) []Informer {
	if kind != Allowed {
		return states[:1]
	}
	return append(slices.Clone(states), Informer{NotServed: true})
}

// sources are what may be known of the names of namespaces.
func sources(kind Kind, namespaces ...string) (sources []Facts) {
	sets := [][]string{nil}
	for _, namespace := range namespaces {
		for _, set := range sets {
			sets = append(sets, append(slices.Clone(set), namespace))
		}
	}
	if kind == Listed {
		return []Facts{{Known: true, Names: namespaces}, {ClusterScoped: true}}
	}
	for _, names := range sets {
		sources = append(sources, Facts{Known: true, Names: names})
	}
	return append(sources, Facts{Awaited: true, Names: namespaces}, Facts{}, Facts{ClusterScoped: true})
}

// derived is a world in which what follows from versions and time is given, whatever it is.
type derived struct {
	source    Facts
	gone      map[string]bool
	informers map[string]Informer
	pace      pace
}

// pace is how far informers are.
type pace struct {
	follows, caughtUp, overdue bool
	behind                     string // these namespaces
}

func (d derived) step(machine *Machine, model *model) (*view, []Effect) {
	v := &view{
		Facts:    model.facts(d.source, d.informers),
		gone:     d.gone,
		unsure:   map[string]bool{},
		behind:   map[string]bool{},
		follows:  d.pace.follows,
		caughtUp: d.pace.caughtUp,
		overdue:  d.pace.overdue,
	}
	for namespace, i := range v.Informers {
		v.behind[namespace] = namespace != All && !model.held[namespace] && !i.Forbidden && !i.NotServed &&
			strings.Contains(d.pace.behind, namespace)
	}
	return v, machine.decide(v)
}

func derivedWorlds(kind Kind) (worlds []world) {
	paces := []pace{{follows: true, caughtUp: true}, {behind: "a"}}
	ofSynced := append(slices.Clone(paces), pace{behind: "ab"}, pace{follows: true, behind: "ab"}, pace{overdue: true})
	for _, source := range sources(kind, "a", "b") {
		for _, gone := range []map[string]bool{{}, {"a": true}, {"a": true, "b": true}} {
			for _, ofAll := range statesOfAll(kind) {
				for _, ofA := range states {
					for _, ofB := range states {
						for _, pace := range map[bool][]pace{false: paces, true: ofSynced}[ofAll.Synced] {
							worlds = append(worlds, derived{source, gone, map[string]Informer{All: ofAll, "a": ofA, "b": ofB}, pace})
						}
					}
				}
			}
		}
	}
	return worlds
}

// observed is a world with versions and time, of one namespace.
type observed struct {
	source    Facts
	exists    map[string]bool
	existsAt  string
	informers map[string]Informer
	received  versions.ByNamespace
	resumed   versions.ByNamespace
	after     time.Duration // since the last step
}

// memory is what the model knows of the past of such worlds.
type memory struct {
	now    time.Time
	had    map[string]bool // the namespaces that existed
	synced bool            // the informer of all namespaces was, and did not feed
	mark   string          // what handlers had received when that began
	since  time.Time       // when handlers began to wait
}

func (o observed) step(machine *Machine, model *model) (*view, []Effect) {
	model.now = model.now.Add(o.after)
	facts := model.facts(o.source, o.informers)
	facts.Now, facts.Exists, facts.ExistsAt, facts.Received = model.now, o.exists, o.existsAt, o.received
	facts.Resumed = o.resumed
	v := model.view(facts, machine.taking)
	effects := machine.Step(facts)
	if machine.taking && model.since.IsZero() {
		model.since = model.now
	}
	if !machine.taking {
		model.since = time.Time{}
	}
	return v, effects
}

// view derives what follows, in words that are not the machine's. Versions are as long as they are
// late.
func (m *model) view(facts Facts, taking bool) *view {
	v := &view{Facts: facts, gone: map[string]bool{}, unsure: map[string]bool{}, behind: map[string]bool{}}
	exists, known := facts.Exists["a"]
	received, resumed := facts.Received["a"], facts.Resumed["a"]
	older := received != "" && len(facts.ExistsAt) >= len(received) || resumed != "" && len(facts.ExistsAt) >= len(resumed)
	_, held := m.held["a"]
	if !held && !m.recorded["a"] {
		m.had = map[string]bool{}
	} else if exists || known && older {
		m.had = map[string]bool{"a": true}
	}
	v.gone["a"] = known && !exists && m.had["a"]
	v.unsure["a"] = known && !exists && !m.had["a"] && (held || m.recorded["a"]) && received+resumed != ""
	if m.config.Kind != Allowed {
		return v
	}
	a := facts.Informers["a"]
	v.behind["a"] = held && !m.held["a"] && !a.Forbidden && len(a.Version) < len(received)
	for _, version := range facts.Received {
		received = max(received, version)
	}
	all := facts.Informers[All]
	if !all.Synced || m.held[All] {
		m.synced, m.mark = false, ""
		return v
	}
	if !m.synced {
		m.synced, m.mark = true, received
	}
	v.caughtUp = len(all.Version) >= len(received)
	v.overdue = taking && !v.caughtUp && m.now.Sub(m.since) > 10*time.Second
	if v.overdue {
		m.mark = received
	}
	v.follows = len(all.Version) >= len(m.mark) && !v.overdue || v.caughtUp
	return v
}

func observedWorlds(kind Kind) (worlds []world) {
	existences := []observed{{}, {exists: map[string]bool{"a": true}, existsAt: "11"}}
	for _, at := range []string{"", "1", "11"} {
		existences = append(existences, observed{exists: map[string]bool{"a": false}, existsAt: at})
	}
	for _, source := range sources(kind, "a") {
		for _, existence := range existences {
			for _, ofAll := range withVersions(statesOfAll(kind)) {
				for _, ofA := range withVersions(states) {
					for _, received := range []versions.ByNamespace{{}, {"a": "1"}, {"a": "11"}, {"a": "1", "b": "111"}} {
						base := observed{
							source:    source,
							exists:    existence.exists,
							existsAt:  existence.existsAt,
							informers: map[string]Informer{All: ofAll, "a": ofA},
							received:  received,
							after:     time.Millisecond,
						}
						worlds = append(worlds, base)
						if ofAll.Synced {
							base.after = 11 * time.Second
							worlds = append(worlds, base)
						} else if len(received) == 0 && existence.existsAt != "11" {
							base.resumed = versions.ByNamespace{"a": "11"}
							worlds = append(worlds, base)
						}
					}
				}
			}
		}
	}
	return worlds
}

// withVersions returns informers that have listed in each version, and the others.
func withVersions(states []Informer) (all []Informer) {
	for _, i := range states {
		if all = append(all, i); i.Served && !i.Forbidden {
			all[len(all)-1].Version = "1"
			i.Version = "11"
			all = append(all, i)
		}
	}
	return all
}

// facts are those of the model's informers.
func (m *model) facts(source Facts, informers map[string]Informer) Facts {
	source.Informers = map[string]Informer{}
	for namespace := range m.held {
		source.Informers[namespace] = informers[namespace]
	}
	source.Recorded = nil
	for _, namespace := range slices.Sorted(maps.Keys(m.recorded)) {
		if m.recorded[namespace] {
			source.Recorded = append(source.Recorded, namespace)
		}
	}
	return source
}

// A set of listed namespaces deletes what handlers know of others: they had another set before.
func TestExploreOthers(t *testing.T) {
	config := Config{Kind: Listed}
	worlds := slices.DeleteFunc(derivedWorlds(Labelled), func(w world) bool {
		return !slices.Equal(w.(derived).source.Names, []string{"b"})
	})
	t.Logf("%+v: %d states, %d worlds", config, explore(t, config, []string{"a", "b"}, worlds), len(worlds))
}

// In every state that the machine can reach, whatever is known next: no object comes from two
// informers, nothing is deleted that may be there, and what the machine does ends in what the set
// is.
func TestExplore(t *testing.T) {
	for _, config := range configs() {
		worlds := derivedWorlds(config.Kind)
		t.Logf("%+v: %d states, %d worlds", config, explore(t, config, []string{"a", "b"}, worlds), len(worlds))
	}
}

// The same, of one namespace, with all that versions and time may be: who knows less never feeds
// who knows more, nothing is deleted that the machine has not seen to exist, and handlers wait for
// ten seconds at most.
func TestExploreVersions(t *testing.T) {
	for _, config := range configs() {
		if config.Max > 1 {
			continue // there is one namespace
		}
		worlds := observedWorlds(config.Kind)
		t.Logf("%+v: %d states, %d worlds", config, explore(t, config, []string{"a"}, worlds), len(worlds))
	}
}

func configs() []Config {
	configs := []Config{{Kind: Listed}, {Kind: Labelled}, {Kind: Allowed, Max: 1}, {Kind: Allowed, Max: 2}}
	if testutil.RaceEnabled {
		return configs[:2] // the others take a minute, and nothing here runs at the same time
	}
	return configs
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
	m.Step(Facts{Informers: map[string]Informer{All: {Synced: true}}})
	g.Expect(m.Members(nil)).To(Equal([]string{All}))
}

// What nothing reports is looked at less and less often.
func TestLooksAgain(t *testing.T) {
	g := NewWithT(t)
	m := New(Config{Kind: Allowed, Max: 3})
	facts := Facts{Received: versions.ByNamespace{"a": "2"}}
	m.Step(facts)
	facts.Informers = map[string]Informer{All: {Synced: true, Version: "1"}}
	var pauses []time.Duration
	for range 9 {
		g.Expect(m.Step(facts)).To(BeEmpty())
		pauses = append(pauses, m.Outcome().Again)
	}
	g.Expect(pauses[0]).To(Equal(10 * time.Millisecond))
	g.Expect(slices.IsSorted(pauses)).To(BeTrue(), "%v", pauses)
	g.Expect(pauses[8]).To(Equal(time.Second))

	// When it begins to take over, handlers wait.
	facts.Informers = map[string]Informer{All: {Forbidden: true}}
	facts.Known, facts.Names, facts.Received = true, []string{"a"}, nil
	g.Expect(m.Step(facts)).To(ConsistOf(Effect{Hold, "a"}))
	facts.Informers = map[string]Informer{All: {Forbidden: true}, "a": {Synced: true, Version: "2"}}
	g.Expect(m.Step(facts)).To(ConsistOf(Effect{Feed, "a"}))
	facts.Received = versions.ByNamespace{"a": "2"}
	facts.Informers[All] = Informer{Synced: true, Version: "1"}
	for range 9 {
		g.Expect(m.Step(facts)).To(BeEmpty())
	}
	facts.Received = versions.ByNamespace{"a": "3"}
	facts.Informers[All] = Informer{Synced: true, Version: "2"}
	g.Expect(m.Step(facts)).To(ConsistOf(Effect{Keep, "a"}))
	g.Expect(m.Step(facts)).To(BeEmpty())
	g.Expect(m.Outcome().Again).To(Equal(10 * time.Millisecond))
}
