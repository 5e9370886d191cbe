package members

import (
	"maps"
	"slices"
)

// Kind says what decides which namespaces are in a set.
type Kind int

const (
	// Listed sets have the namespaces that their definition names.
	Listed Kind = iota
	// Labelled sets have the namespaces whose labels match.
	Labelled
	// Allowed sets have the namespaces in which the identity may list and watch.
	Allowed
)

// All stands for all namespaces, among the names of namespaces.
const All = ""

// Config does not change.
type Config struct {
	Kind Kind
	Max  int // how many namespaces an Allowed set has at most
}

// Facts are all that is known at a moment.
type Facts struct {
	// Known says whether Names is complete. If not, it is ignored.
	Known bool
	// Names are the namespaces that the definition names, or whose labels match, or, for an Allowed
	// set, in which the identity has a binding. They are sorted.
	Names []string
	// Gone are the namespaces that existed and do not exist any more, of those that are held or
	// recorded.
	Gone map[string]bool
	// Informers has what is known of the informers that are held.
	Informers map[string]Informer
	// Recorded are the namespaces of objects that handlers know and that nothing feeds.
	Recorded []string
	// CaughtUp says whether the informer of all namespaces has all that the handlers have received.
	CaughtUp bool
}

// names reports whether the namespace is one of Names.
func (f *Facts) names(namespace string) bool {
	_, found := slices.BinarySearch(f.Names, namespace)
	return found
}

// Informer is what is known of an informer.
type Informer struct {
	Synced    bool // now
	Forbidden bool // now
	Served    bool // it has been Synced
}

// Do is what to do with a namespace, or with the informer of all namespaces.
type Do int

const (
	// Hold begins to use the informer, and observes its state.
	Hold Do = iota
	// Feed makes the informer feed the handlers, which continue after what is on record of its
	// namespaces.
	Feed
	// Keep ends what Feed began. What the handlers know goes on record.
	Keep
	// Delete makes the handlers receive deletions for all that is on record of the namespace.
	Delete
	// Release ends what Hold began.
	Release
)

// Effect is what to do.
type Effect struct {
	Do        Do
	Namespace string
}

// Machine decides for one set. Use New to create one. Machine is not safe for concurrent use.
type Machine struct {
	config  Config
	held    map[string]bool // whether what is held feeds
	buried  map[string]bool // held namespaces that are gone; they do not feed
	taking  bool            // the informer of all namespaces takes over; nothing feeds
	effects []Effect        // of the step
}

// New returns a machine that holds nothing.
func New(config Config) Machine {
	return Machine{config: config, held: map[string]bool{}, buried: map[string]bool{}}
}

// TakesOver reports whether handlers wait until Facts.CaughtUp.
func (m *Machine) TakesOver() bool { return m.taking }

// Feeds reports whether the informer feeds the handlers.
func (m *Machine) Feeds(namespace string) bool { return m.held[namespace] }

// Members returns the informers whose objects are those of the set, sorted. An Allowed set has no
// namespace in which the identity never had access.
func (m *Machine) Members(informers map[string]Informer) (members []string) {
	if m.held[All] {
		return []string{All}
	}
	for _, namespace := range m.namespaces() {
		if i := informers[namespace]; m.config.Kind != Allowed || !i.Forbidden || i.Served {
			members = append(members, namespace)
		}
	}
	return members
}

// Beyond returns how many namespaces an Allowed set would have if it may have more.
func (m *Machine) Beyond(facts Facts) (beyond int) {
	if m.config.Kind != Allowed || !facts.Known || m.taking || m.held[All] || !facts.Informers[All].Forbidden {
		return 0
	}
	for _, namespace := range facts.Names {
		if _, held := m.held[namespace]; !held {
			beyond++
		}
	}
	return beyond
}

// Step returns what to do. An Allowed set calls the steps of both of its forms.
func (m *Machine) Step(facts Facts) []Effect {
	m.effects = nil
	if m.config.Kind == Allowed {
		m.choose(facts)
	}
	if m.config.Kind != Allowed || !m.taking && !m.held[All] {
		m.leave(facts)
		m.join(facts)
		m.bury(facts)
	}
	for _, namespace := range facts.Recorded {
		if _, held := m.held[namespace]; !held && !m.held[All] && !m.taking && m.lost(facts, namespace) {
			m.do(Delete, namespace)
		}
	}
	return m.effects
}

// Stop returns what to do when the set ends: handlers receive nothing more.
func (m *Machine) Stop() []Effect {
	m.effects = nil
	for _, namespace := range slices.Sorted(maps.Keys(m.held)) {
		m.release(namespace)
	}
	return m.effects
}

// choose decides between one informer of all namespaces and one of each.
func (m *Machine) choose(facts Facts) {
	if _, held := m.held[All]; !held {
		m.do(Hold, All)
	}
	all := facts.Informers[All]
	switch {
	case m.held[All]:
		if all.Forbidden {
			m.do(Keep, All)
		}
	case m.taking && !all.Synced: // it did not take over
		m.taking = false
		for _, namespace := range m.namespaces() {
			if !m.buried[namespace] {
				m.do(Feed, namespace)
			}
		}
	case m.taking:
		m.takeOver(facts)
	case all.Synced:
		m.taking = true
		kept := false
		for _, namespace := range m.namespaces() {
			if m.held[namespace] {
				m.do(Keep, namespace)
				kept = true
			}
		}
		if !kept { // so what is known of the handlers is still so
			m.takeOver(facts)
		}
	}
}

// takeOver makes the informer of all namespaces feed the handlers, if it has all that they know.
func (m *Machine) takeOver(facts Facts) {
	if !facts.CaughtUp {
		return
	}
	m.taking = false
	m.do(Feed, All)
	for _, namespace := range m.namespaces() {
		m.release(namespace)
	}
}

// lost reports whether the handlers must forget the objects of a namespace that the set does not
// have: permission is never a reason.
func (m *Machine) lost(facts Facts, namespace string) bool {
	if m.config.Kind == Labelled {
		return facts.Known && !facts.names(namespace)
	}
	return facts.Gone[namespace] && (!facts.Known || !facts.names(namespace))
}

// leave ends what the set has no more. What is on record then is deleted, or kept.
func (m *Machine) leave(facts Facts) {
	if !facts.Known || m.config.Kind == Listed {
		return
	}
	for _, namespace := range m.namespaces() {
		if facts.names(namespace) {
			continue
		}
		i := facts.Informers[namespace]
		if m.config.Kind == Labelled || i.Forbidden && (facts.Gone[namespace] || !i.Served) {
			m.release(namespace)
		}
	}
}

// join begins what the set has now.
func (m *Machine) join(facts Facts) {
	if !facts.Known || m.config.Kind == Allowed && !facts.Informers[All].Forbidden {
		return
	}
	for _, namespace := range facts.Names {
		if _, held := m.held[namespace]; held || !m.hasRoom(facts) {
			continue
		}
		m.do(Hold, namespace)
		m.do(Feed, namespace)
	}
}

// hasRoom reports whether one more namespace may be held. A namespace without permission and
// without a binding makes room.
func (m *Machine) hasRoom(facts Facts) bool {
	held := m.namespaces()
	if m.config.Kind != Allowed || len(held) < m.config.Max {
		return true
	}
	for _, namespace := range held {
		if facts.Informers[namespace].Forbidden && !facts.names(namespace) {
			m.release(namespace)
			return true
		}
	}
	return false
}

// bury makes handlers receive deletions for the objects of held namespaces that are gone, unless an
// informer delivers them. The informer feeds the handlers again when it may have other objects.
func (m *Machine) bury(facts Facts) {
	for _, namespace := range m.namespaces() {
		gone := facts.Gone[namespace] && facts.Informers[namespace].Forbidden
		switch {
		case gone && !m.buried[namespace]:
			m.buried[namespace] = true
			m.do(Keep, namespace)
			m.do(Delete, namespace)
		case !gone && m.buried[namespace]:
			delete(m.buried, namespace)
			m.do(Feed, namespace)
		}
	}
}

// namespaces returns the namespaces that are held, sorted.
func (m *Machine) namespaces() []string {
	names := slices.Sorted(maps.Keys(m.held))
	return slices.DeleteFunc(names, func(name string) bool { return name == All })
}

// release ends what feeds, keeps what the handlers know, and releases the informer.
func (m *Machine) release(namespace string) {
	if m.held[namespace] {
		m.do(Keep, namespace)
	}
	m.do(Release, namespace)
}

func (m *Machine) do(what Do, namespace string) {
	switch what {
	case Hold, Keep:
		m.held[namespace] = false
	case Delete: // of what is on record
	case Feed:
		m.held[namespace] = true
	case Release:
		delete(m.held, namespace)
		delete(m.buried, namespace)
	}
	m.effects = append(m.effects, Effect{what, namespace})
}
