package scopedcache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// mailbox holds the events that a scope's run has not taken yet. Its size is bounded: flags, one
// answer, some reports of watches, and the latest report of an informer's requests. A mailbox that
// is open starts a goroutine for what it receives, unless that goroutine runs already. Its methods
// may be called from any goroutine and do not block.
type mailbox struct {
	readNoted atomic.Bool // a Read is in the mailbox, or the machine has an unused one

	mu      sync.Mutex
	start   func()          // guarded by mu; starts the goroutine; nil while the mailbox is not open
	active  bool            // guarded by mu; the goroutine runs, and will take again
	ready   bool            // guarded by mu; there is something to take
	answers []monitor.Event // guarded by mu; at most one, because one question is open at a time
	life    monitor.LifeID  // guarded by mu; the life that watches, served and trouble belong to
	watches []monitor.Event // guarded by mu; how watches go, in order; at most maxWatches
	served  bool            // guarded by mu; a request was served, before trouble if that is set
	trouble monitor.Event   // guarded by mu; the latest Failed or Refused, nil if there is none
	access  bool            // guarded by mu
	watched bool            // guarded by mu; whether RBAC events are watched may have changed
	read    bool            // guarded by mu
	tick    bool            // guarded by mu
	idleDue bool            // guarded by mu; it is time to look whether the scope is idle
	fresh   bool            // guarded by mu; a user waits for a fresh informer
}

// open makes the mailbox call start when there is something to take: now, and each time after take
// has returned nothing. start starts a goroutine that calls take until it returns nothing.
func (m *mailbox) open(start func()) {
	m.put(func() { m.start = start })
}

// close makes the mailbox start no goroutine any more.
func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start = nil
}

// put changes the content of the mailbox.
func (m *mailbox) put(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	m.ready = true
	if m.start != nil && !m.active {
		m.active = true
		m.start()
	}
}

func (m *mailbox) wake()        { m.put(func() {}) }
func (m *mailbox) markWatched() { m.put(func() { m.watched = true }) }
func (m *mailbox) markTick()    { m.put(func() { m.tick = true }) }
func (m *mailbox) checkIdle()   { m.put(func() { m.idleDue = true }) }
func (m *mailbox) wantFresh()   { m.put(func() { m.fresh = true }) }

func (m *mailbox) answer(e monitor.Event) { m.put(func() { m.answers = append(m.answers, e) }) }
func (m *mailbox) accessMayHaveChanged()  { m.put(func() { m.access = true }) }

// markWanted records that a reader asked for a kind that is not served. However many readers ask,
// the run wakes up once until it has taken the event.
func (m *mailbox) markWanted() {
	if !m.readNoted.Swap(true) {
		m.put(func() { m.read = true })
	}
}

// forgetRead records that the machine has no Read, so that the next Read wakes the run. A Read in
// the mailbox stays.
func (m *mailbox) forgetRead() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.read {
		m.readNoted.Store(false)
	}
}

// reportServed records that the API server served an informer. Earlier errors of that informer are
// dropped.
func (m *mailbox) reportServed(life monitor.LifeID) {
	m.put(func() {
		if m.isLatestLocked(life) {
			m.served, m.trouble = true, nil
		}
	})
}

// reportError records the error of an informer's request. sent is when the request was sent.
func (m *mailbox) reportError(life monitor.LifeID, outcome monitor.Outcome, err error, sent time.Time) {
	m.put(func() {
		if !m.isLatestLocked(life) {
			return
		}
		at := time.Now()
		if earlier, ok := m.trouble.(monitor.Refused); ok {
			at = earlier.At
			if outcome != monitor.OutcomeRefused {
				return // a temporary error does not replace a refusal
			}
		}
		if outcome == monitor.OutcomeRefused {
			m.trouble = monitor.Refused{Life: life, Err: err, Sent: sent, At: at}
		} else {
			m.trouble = monitor.Failed{Life: life, Err: err}
		}
	})
}

// maxWatches is how many reports of watches a mailbox holds.
const maxWatches = 16

// reportWatch records how a watch goes. If the run does not take the reports for so long, the
// earliest is dropped.
func (m *mailbox) reportWatch(life monitor.LifeID, report monitor.Event) {
	m.put(func() {
		if !m.isLatestLocked(life) {
			return
		}
		if len(m.watches) == maxWatches {
			m.watches = m.watches[1:]
		}
		m.watches = append(m.watches, report)
	})
}

// isLatestLocked reports whether life is the latest. A newer life drops the reports of earlier
// ones. The caller holds mu.
func (m *mailbox) isLatestLocked(life monitor.LifeID) bool {
	if life > m.life {
		m.life, m.watches, m.served, m.trouble = life, nil, false, nil
	}
	return life == m.life
}

// delivery is what take removes from a mailbox.
type delivery struct {
	watches []monitor.Event // how watches go: first, because each step judges the running watch
	watched bool            // whether RBAC events are watched may have changed, before the events
	events  []monitor.Event // in the order in which the machine must step them
	idle    bool            // it is time to look whether the scope is idle
	fresh   bool            // a user waits for a fresh informer
}

// take removes and returns the content. If there is nothing to take, ok is false, and the caller
// must return.
func (m *mailbox) take() (taken delivery, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ready {
		m.active = false
		return delivery{}, false
	}
	// An error of a later request says what the end of a watch does not.
	taken = delivery{watches: m.watches, watched: m.watched, events: m.answers, idle: m.idleDue, fresh: m.fresh}
	if m.served {
		taken.events = append(taken.events, monitor.Served{Life: m.life})
	}
	if m.trouble != nil {
		taken.events = append(taken.events, m.trouble)
	}
	if m.access {
		taken.events = append(taken.events, monitor.AccessMayHaveChanged{})
	}
	if m.read {
		taken.events = append(taken.events, monitor.Read{})
	}
	if m.tick {
		taken.events = append(taken.events, monitor.Tick{})
	}
	m.answers, m.watches, m.trouble = nil, nil, nil
	m.ready, m.watched, m.served, m.access, m.read, m.tick, m.idleDue = false, false, false, false, false, false, false
	m.fresh = false
	return taken, true
}
