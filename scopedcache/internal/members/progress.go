package members

import (
	"maps"
	"slices"
	"time"

	"github.com/latchkey-dev/latchkey/internal/versions"
)

const (
	// lookAtFirst and lookAtLast are the shortest and the longest time until the machine looks again
	// at what nothing reports: how far informers are.
	lookAtFirst, lookAtLast = 10 * time.Millisecond, time.Second
	// takeOverFor is how long handlers receive nothing while one informer takes over.
	takeOverFor = 10 * time.Second
)

// progress is what the machine remembers of versions and of time.
type progress struct {
	// An informer may be Synced and far behind, or hang: then it must not take over. synced says
	// that the informer of all namespaces was Synced and did not feed, at the last look; mark is
	// what handlers had received when that began.
	synced bool
	mark   string
	since  time.Time       // when it began to take over
	had    map[string]bool // the namespaces that existed, of those that are held or recorded
}

// view is what is known and what follows from it.
type view struct {
	Facts
	gone   map[string]bool // namespaces that existed and do not exist any more
	unsure map[string]bool // namespaces that do not exist, and may be too new to be known
	behind map[string]bool // their informers lack what the handlers have received from others
	// follows says whether the informer of all namespaces has what the handlers had received when it
	// synced, and caughtUp whether it has all that they have received.
	follows, caughtUp bool
	overdue           bool // it has been taking over for too long
}

// look derives what follows from the facts and from what was known before.
func (m *Machine) look(facts Facts) *view {
	v := &view{Facts: facts, gone: map[string]bool{}, unsure: map[string]bool{}, behind: map[string]bool{}}
	m.lookForGone(v)
	if m.config.Kind != Allowed {
		return v
	}
	for namespace, i := range v.Informers {
		// One that may not run begins anew, and later, with a list that is not old.
		v.behind[namespace] = namespace != All && !m.held[namespace] && !i.Forbidden && !i.NotServed &&
			!versions.Reached(i.Version, v.Received[namespace])
	}
	all := v.Informers[All]
	if !all.Synced || m.held[All] {
		m.synced, m.mark = false, ""
		return v
	}
	latest := v.Received.Latest()
	if !m.synced {
		m.synced, m.mark = true, latest
	}
	v.caughtUp = versions.Reached(all.Version, latest)
	v.overdue = m.taking && !v.caughtUp && v.Now.Sub(m.since) > takeOverFor
	if v.overdue {
		m.mark = latest // so that it does not begin again at once
	}
	v.follows = v.caughtUp || !v.overdue && versions.Reached(all.Version, m.mark)
	return v
}

// lookForGone finds the namespaces that are gone. One that was never seen is, if an object in it is
// older than what is known of namespaces.
func (m *Machine) lookForGone(v *view) {
	before := m.had
	m.had = map[string]bool{}
	note := func(namespace string) {
		if namespace == All {
			return
		}
		exists, known := v.Exists[namespace]
		absent, had := known && !exists, before[namespace]
		for _, version := range []string{v.Received[namespace], v.Resumed[namespace]} {
			if absent && !had && version != "" {
				had = versions.Reached(v.ExistsAt, version)
				v.unsure[namespace] = !had
			}
		}
		m.had[namespace] = exists || had
		v.gone[namespace] = absent && had
	}
	for namespace := range m.held {
		note(namespace)
	}
	for _, namespace := range v.Recorded {
		note(namespace)
	}
}

// Outcome is what has become of a set when there is nothing to do.
type Outcome struct {
	// Decided says that it is known which namespaces are in the set, or that this cannot be known
	// now.
	Decided bool
	// LeftOut is how many namespaces are not tried because of Max.
	LeftOut int
	// Kept is how many namespaces that are not in the set handlers know objects of.
	Kept int
	// Again is after which time to call Step again if nothing changes; zero for never.
	Again time.Duration
}

// Outcome returns what had become of the set when there was nothing to do last.
func (m *Machine) Outcome() Outcome { return m.outcome }

// conclude records what has become of the set.
func (m *Machine) conclude(v *view) {
	known := v.Known || !v.Awaited
	all := v.Informers[All]
	switch {
	case m.config.Kind != Allowed || v.ClusterScoped:
		m.outcome.Decided = known
	case m.held[All]:
		m.outcome.Decided = true
	case all.Forbidden || len(m.Members(v.Informers)) == 0:
		m.outcome.Decided = all.Forbidden && known || all.NotServed
	default: // the informer of all namespaces begins; until it takes over, the set is what it was
	}
	m.outcome.LeftOut, m.outcome.Kept = m.leftOut(v), m.kept(v)
	if pause := m.outcome.Again; m.waits(v) {
		m.outcome.Again = min(max(2*pause, lookAtFirst), lookAtLast)
	} else {
		m.outcome.Again = 0
	}
}

// waits reports whether something may happen that nothing reports.
func (m *Machine) waits(v *view) bool {
	if m.taking || v.Informers[All].Synced && !m.held[All] {
		return true
	}
	return slices.Contains(slices.Collect(maps.Values(v.behind)), true) ||
		slices.Contains(slices.Collect(maps.Values(v.unsure)), true)
}

func (m *Machine) leftOut(v *view) (left int) {
	if m.config.Kind != Allowed || !v.Known || m.taking || m.held[All] || !v.Informers[All].Forbidden {
		return 0
	}
	for _, namespace := range v.Names {
		if _, held := m.held[namespace]; !held {
			left++
		}
	}
	return left
}

func (m *Machine) kept(v *view) (kept int) {
	if m.config.Kind != Allowed || m.taking {
		return 0
	}
	for _, namespace := range v.Recorded {
		if _, held := m.held[namespace]; !held && namespace != All {
			kept++
		}
	}
	return kept
}
