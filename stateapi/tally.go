package stateapi

import (
	"container/list"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/stateapi/internal/merge"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// tally counts what is shown of the extensions of a fleet. A change and a reading cost the same for
// any number of extensions.
type tally struct {
	states               map[string]int // extensions by state
	unclaimed, contested lasting
}

func newTally() *tally {
	return &tally{
		states: map[string]int{
			v1alpha1.StateConnected:    0,
			v1alpha1.StateDegraded:     0,
			v1alpha1.StateConnecting:   0,
			v1alpha1.StateDisconnected: 0,
			v1alpha1.StateUnknown:      0,
		},
		unclaimed: newLasting(),
		contested: newLasting(),
	}
}

// replace says that another thing is shown of an extension than before. The zero shownExtension
// stands for nothing.
func (t *tally) replace(key client.ObjectKey, before, after shownExtension, now time.Time) {
	if before.state != "" {
		t.states[before.state]--
	}
	if after.state != "" {
		t.states[after.state]++
	}
	if before.choice.UID != after.choice.UID { // another extension of the same name
		t.unclaimed.remove(key)
		t.contested.remove(key)
	}
	// What has begun to count goes on while a replica is silent. Nothing begins to count then.
	t.unclaimed.set(key, after.choice.Kind == merge.Unclaimed ||
		after.choice.Kind == merge.Unsure && t.unclaimed.since[key] != nil, now)
	t.contested.set(key, after.choice.Contested, now)
}

// lasting has the extensions of which something is true, since when.
type lasting struct {
	order *list.List // of time.Time; the oldest is the first
	since map[client.ObjectKey]*list.Element
}

func newLasting() lasting {
	return lasting{order: list.New(), since: map[client.ObjectKey]*list.Element{}}
}

func (l *lasting) set(key client.ObjectKey, is bool, now time.Time) {
	if !is {
		l.remove(key)
	} else if l.since[key] == nil {
		l.since[key] = l.order.PushBack(now)
	}
}

func (l *lasting) remove(key client.ObjectKey) {
	if element := l.since[key]; element != nil {
		l.order.Remove(element)
		delete(l.since, key)
	}
}

// at returns how many there are, and for how long the oldest has been there.
func (l *lasting) at(now time.Time) (result metrics.Lasting) {
	if oldest := l.order.Front(); oldest != nil {
		result.Oldest = max(0, now.Sub(oldest.Value.(time.Time)))
	}
	result.Extensions = l.order.Len()
	return result
}

// gauges returns the values of metrics.
func (m *merged) gauges(now time.Time) metrics.Fleet {
	m.mu.Lock()
	defer m.mu.Unlock()
	others := map[string]bool{}
	for _, name := range slices.Concat(m.members, m.view.Replicas()) {
		if name != m.self {
			_, heard := m.view.HeardAt(name)
			_, doubted := m.view.DoubtedSince(name)
			others[name] = heard && !doubted
		}
	}
	values := metrics.Fleet{
		States:    maps.Clone(m.tally.states),
		Unclaimed: m.tally.unclaimed.at(now),
		Contested: m.tally.contested.at(now),
		Replicas:  1 + len(others),
	}
	for _, heard := range others {
		if !heard {
			values.Silent++
		}
	}
	return values
}
