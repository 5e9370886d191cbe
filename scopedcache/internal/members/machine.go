package members

import (
	"maps"
	"slices"
	"time"

	"github.com/latchkey-dev/latchkey/internal/versions"
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
	Max  int // how many namespaces an Allowed set has at most, without those that are only tried
}

// Facts are all that is known at a moment.
type Facts struct {
	// Now is the time.
	Now time.Time
	// ClusterScoped says that the kind has no namespaces, so that there is no set of them.
	ClusterScoped bool
	// Known says whether Names is complete. If not, it is ignored, and Awaited says whether it will
	// be known.
	Known, Awaited bool
	// Names are the namespaces that the definition names, or whose labels match, or, for an Allowed
	// set, in which the identity has a binding. They are sorted.
	Names []string
	// Exists says whether namespaces exist, of those that are held or recorded. It lacks those of
	// which that is not known.
	Exists map[string]bool
	// ExistsAt is a resource version: Exists is not older. It is compared with those of objects, which
	// holds where one storage gives all of them; elsewhere, a namespace that has never been seen may
	// be taken for one that is gone, or not be.
	ExistsAt string
	// Informers has what is known of the informers that are held.
	Informers map[string]Informer
	// Recorded are the namespaces of objects that handlers know and that nothing feeds, sorted.
	Recorded []string
	// Received are the latest versions that handlers have received from informers that were held.
	Received versions.ByNamespace
	// Resumed are the latest versions of what handlers had received before. Another API server may
	// have given them, so that no informer ever reaches them.
	Resumed versions.ByNamespace
}

// names reports whether the namespace is one of Names.
func (f *Facts) names(namespace string) bool {
	_, found := slices.BinarySearch(f.Names, namespace)
	return found
}

// Informer is what is known of an informer.
type Informer struct {
	Synced    bool   // now
	Forbidden bool   // now
	NotServed bool   // now: the kind is not
	Served    bool   // it has been Synced
	Version   string // what it has reached; empty before its first list
}

// denied reports whether there never was permission.
func (i Informer) denied() bool { return i.Forbidden && !i.Served }

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
	config Config
	held   map[string]bool // whether what is held feeds
	places map[string]bool // held namespaces of an Allowed set that count for Max
	buried map[string]bool // held namespaces that are gone; they do not feed
	taking bool            // the informer of all namespaces takes over; nothing feeds
	progress
	outcome Outcome  // of the last step that had nothing to do
	effects []Effect // of the step
}

// New returns a machine that holds nothing.
func New(config Config) Machine {
	return Machine{config: config, held: map[string]bool{}, places: map[string]bool{}, buried: map[string]bool{}}
}

// Feeds reports whether the informer feeds the handlers.
func (m *Machine) Feeds(namespace string) bool { return m.held[namespace] }

// AllFeed reports whether each informer feeds the handlers that will.
func (m *Machine) AllFeed() bool {
	for _, namespace := range m.namespaces() {
		if !m.held[namespace] && !m.buried[namespace] {
			return false
		}
	}
	return !m.taking
}

// Members returns the informers whose objects are those of the set, sorted. An Allowed set has no
// namespace in which the identity never had access.
func (m *Machine) Members(informers map[string]Informer) (members []string) {
	if m.held[All] {
		return []string{All}
	}
	for _, namespace := range m.namespaces() {
		if i := informers[namespace]; m.config.Kind != Allowed || !i.denied() {
			members = append(members, namespace)
		}
	}
	return members
}

// Step returns what to do. Call it again when that is done, and until it returns nothing.
func (m *Machine) Step(facts Facts) []Effect { return m.decide(m.look(facts)) }

// decide returns what to do. An Allowed set calls the steps of both of its forms.
func (m *Machine) decide(v *view) []Effect {
	m.effects = nil
	switch {
	case v.ClusterScoped:
		m.releaseAll()
	case m.config.Kind == Allowed:
		m.choose(v)
	}
	if !v.ClusterScoped && !m.taking && !m.held[All] {
		m.leave(v)
		m.place(v)
		m.join(v)
		m.feed(v)
	}
	for _, namespace := range v.Recorded {
		if namespace == All { // the kind was cluster-scoped
			continue
		}
		_, held := m.held[namespace]
		outside := !held && !m.held[All] && !m.taking && m.lost(v, namespace)
		if outside || m.buried[namespace] && !m.held[namespace] && v.gone[namespace] {
			m.do(Delete, namespace)
		}
	}
	if len(m.effects) == 0 {
		m.conclude(v)
	}
	return m.effects
}

// Stop returns what to do when the set ends: handlers receive nothing more.
func (m *Machine) Stop() []Effect {
	m.effects = nil
	m.releaseAll()
	return m.effects
}

// releaseAll ends everything.
func (m *Machine) releaseAll() {
	m.taking = false
	for _, namespace := range slices.Sorted(maps.Keys(m.held)) {
		m.release(namespace)
	}
}

// choose decides between one informer of all namespaces and one of each.
func (m *Machine) choose(v *view) {
	if _, held := m.held[All]; !held {
		m.do(Hold, All)
	}
	all := v.Informers[All]
	switch {
	case m.held[All]:
		if all.Forbidden {
			m.do(Keep, All)
		}
	case m.taking && (!all.Synced || v.overdue):
		m.taking = false // and the namespaces feed again
	case m.taking:
		m.takeOver(v)
	case all.Synced && v.follows:
		m.taking, m.since, m.outcome.Again = true, v.Now, 0 // handlers wait now, so it looks soon
		kept := false
		for _, namespace := range m.namespaces() {
			if m.held[namespace] {
				m.do(Keep, namespace)
				kept = true
			}
		}
		if !kept { // so what is known of the handlers is still so
			m.takeOver(v)
		}
	}
}

// takeOver makes the informer of all namespaces feed the handlers, if it has all that they know.
func (m *Machine) takeOver(v *view) {
	if !v.caughtUp {
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
func (m *Machine) lost(v *view, namespace string) bool {
	if m.config.Kind != Allowed { // the set of an earlier connection may have had others
		return v.Known && !v.names(namespace)
	}
	return v.gone[namespace] && (!v.Known || !v.names(namespace))
}

// leave ends what the set has no more. What is on record then is deleted, or kept.
func (m *Machine) leave(v *view) {
	if !v.Known || m.config.Kind == Listed {
		return
	}
	for _, namespace := range m.namespaces() {
		if v.names(namespace) {
			continue
		}
		i := v.Informers[namespace]
		if m.config.Kind == Labelled || i.denied() || i.Forbidden && v.gone[namespace] {
			m.release(namespace)
		}
	}
}

// place gives a place to what was tried and is allowed now, while there are places.
func (m *Machine) place(v *view) {
	if m.config.Kind != Allowed {
		return
	}
	for namespace := range m.places {
		if v.Informers[namespace].denied() {
			delete(m.places, namespace)
		}
	}
	for _, namespace := range m.namespaces() {
		switch _, held := m.held[namespace]; {
		case !held: // another one has its place
		case m.places[namespace] || v.Informers[namespace].denied():
		case m.hasPlace(v):
			m.places[namespace] = true
		default:
			m.release(namespace)
		}
	}
}

// join begins what the set has now.
func (m *Machine) join(v *view) {
	if !v.Known || m.config.Kind == Allowed && !v.Informers[All].Forbidden {
		return
	}
	for _, namespace := range v.Names {
		if _, held := m.held[namespace]; held || m.config.Kind == Allowed && !m.hasPlace(v) {
			continue
		}
		m.do(Hold, namespace)
		m.places[namespace] = m.config.Kind == Allowed
	}
}

// hasPlace reports whether there is a place for one more namespace. One without permission and
// without a binding makes room.
func (m *Machine) hasPlace(v *view) bool {
	if len(m.places) < m.config.Max {
		return true
	}
	for _, namespace := range m.namespaces() {
		if m.places[namespace] && v.Informers[namespace].Forbidden && v.Known && !v.names(namespace) {
			m.release(namespace)
			return true
		}
	}
	return false
}

// feed makes informers feed the handlers that may have no more than these. If a namespace is gone,
// its objects are deleted, unless the informer delivers that.
func (m *Machine) feed(v *view) {
	for _, namespace := range m.namespaces() {
		i, known := v.Informers[namespace]
		gone := v.gone[namespace] && i.Forbidden
		switch {
		case gone && !m.buried[namespace]:
			m.buried[namespace] = true
			if m.held[namespace] {
				m.do(Keep, namespace)
			}
			m.do(Delete, namespace)
		case gone:
		case known && !v.behind[namespace] && !m.held[namespace]:
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
		delete(m.places, namespace)
		delete(m.buried, namespace)
	}
	m.effects = append(m.effects, Effect{what, namespace})
}
