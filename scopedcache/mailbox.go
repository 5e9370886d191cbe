package scopedcache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// mailbox holds the events that a scope's run has not taken yet. It is bounded: flags, one answer,
// and the latest word of an informer. Its methods may be called from any goroutine and do not
// block.
type mailbox struct {
	ready     chan struct{} // holds a token when there is something to take
	readNoted atomic.Bool   // a Read is here, or the machine has one that it has not used

	mu      sync.Mutex
	answers []monitor.Event // guarded by mu; one, for one question is under way
	life    monitor.LifeID  // guarded by mu; that served and trouble are of
	served  bool            // guarded by mu; something was served, and trouble came after that
	trouble monitor.Event   // guarded by mu; the latest Failed or Refused, nil if there is none
	access  bool            // guarded by mu
	read    bool            // guarded by mu
}

func newMailbox() *mailbox { return &mailbox{ready: make(chan struct{}, 1)} }

// put changes what is in the mailbox.
func (m *mailbox) put(change func()) {
	m.mu.Lock()
	change()
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

func (m *mailbox) answer(e monitor.Event) { m.put(func() { m.answers = append(m.answers, e) }) }
func (m *mailbox) accessMayHaveChanged()  { m.put(func() { m.access = true }) }

// markRead notes that a reader asked for what is not served. However many ask, the run is woken
// once until it has looked.
func (m *mailbox) markRead() {
	if !m.readNoted.Swap(true) {
		m.put(func() { m.read = true })
	}
}

// forgetRead says that the machine has no Read, so that the next one counts. One that waits here
// counts, too.
func (m *mailbox) forgetRead() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.read {
		m.readNoted.Store(false)
	}
}

// reportServed notes that the API server served an informer, whatever it answered before.
func (m *mailbox) reportServed(life monitor.LifeID) {
	m.put(func() {
		if m.isOfLocked(life) {
			m.served, m.trouble = true, nil
		}
	})
}

// reportError notes an error of an informer's request that was sent at that time.
func (m *mailbox) reportError(life monitor.LifeID, outcome monitor.Outcome, err error, sent time.Time) {
	m.put(func() {
		if !m.isOfLocked(life) {
			return
		}
		at := time.Now()
		if earlier, ok := m.trouble.(monitor.Refused); ok {
			at = earlier.At
			if outcome != monitor.OutcomeRefused {
				return // a refusal is not forgotten because of what may pass
			}
		}
		if outcome == monitor.OutcomeRefused {
			m.trouble = monitor.Refused{Life: life, Err: err, Sent: sent, At: at}
		} else {
			m.trouble = monitor.Failed{Life: life, Err: err}
		}
	})
}

// isOfLocked reports whether life is the latest, and forgets earlier ones.
func (m *mailbox) isOfLocked(life monitor.LifeID) bool {
	if life > m.life {
		m.life, m.served, m.trouble = life, false, nil
	}
	return life == m.life
}

// take returns what there is, in the order in which it is to be stepped.
func (m *mailbox) take() (events []monitor.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	events, m.answers = m.answers, nil
	if m.served {
		events = append(events, monitor.Served{Life: m.life})
	}
	if m.trouble != nil {
		events = append(events, m.trouble)
	}
	if m.access {
		events = append(events, monitor.AccessMayHaveChanged{})
	}
	if m.read {
		events = append(events, monitor.Read{})
	}
	m.served, m.trouble, m.access, m.read = false, nil, false, false
	return events
}
