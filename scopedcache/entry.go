package scopedcache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/internal/latch"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/lightinformer"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// entry is a scope in the cache. An entry has everything that outlives the scope's informers: the
// holders, the state, and the event handlers.
type entry struct {
	selection selection
	requires  requirements // of the scope, without the cache's options
	named     bool         // reads began the scope for one name
	env       *environment
	entries   *entrySet // that the entry is in

	uses    []*use      // guarded by entries.mu: what keeps the scope
	handles []*Handle   // guarded by entries.mu: the holders, of all users
	ofSet   atomic.Bool // set under entries.mu: a holder hands handlers over from other informers
	end     func()      // set under entries.mu when the scope starts to run

	live atomic.Pointer[liveUse] // of the Gets that go to the API server instead; nil for none

	mail mailbox // events for the run of the scope

	current atomic.Pointer[informer] // serves reads; nil while no informer does

	// notifyMu is locked while a state is recorded and observers are notified. So observers receive
	// states in order. notifyMu is locked before mu.
	notifyMu sync.Mutex

	mu            sync.Mutex            // before entries.mu
	state         State                 // guarded by mu
	since         time.Time             // guarded by mu
	lastError     error                 // guarded by mu
	served        bool                  // guarded by mu: it has been Synced
	changed       chan struct{}         // guarded by mu: closed at the next change; nil until awaited
	settled       latch.Latch           // opened under mu when a read's result is first known
	observers     []observer            // guarded by mu
	running       *informer             // guarded by mu: feeds the handlers
	registrations []*registration       // guarded by mu
	indexers      []toolscache.Indexers // guarded by mu: added to every informer
}

// errWaitsForTurn is why an informer has no objects yet although nothing failed.
var errWaitsForTurn = errors.New("the list waits for its turn: see ListLimit")

// failsFor is how long a scope fails before reads no longer wait for it.
const failsFor = 5 * time.Second

// fails reports whether the scope has no informer to read from, and may never have one.
func (s *entry) fails() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == StateFailing && s.current.Load() == nil && time.Since(s.since) >= failsFor
}

// idleTimeout is after how long without a read the scope ends, 0 for never. Scopes for single names
// end in any case: there may be many.
func (s *entry) idleTimeout() time.Duration {
	if timeout := s.env.options.IdleTimeout; timeout > 0 || !s.named {
		return timeout
	}
	return namedIdleTimeout
}

// lastErrorLocked returns why the informer does not sync, nil if unknown. The caller holds mu.
func (s *entry) lastErrorLocked() error {
	if s.lastError == nil && s.running != nil && s.running.waits.Load() {
		return errWaitsForTurn
	}
	if s.lastError == nil && s.running != nil && s.running.streams() {
		return monitor.ErrStreams
	}
	return s.lastError
}

// notSynced returns the error for a wait that ended.
func (s *entry) notSynced(cause error) *NotSyncedError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &NotSyncedError{
		GVK:   s.selection.kind.gvk,
		Scope: s.selection.scope,
		State: s.state,
		Since: s.since,
		Last:  s.lastErrorLocked(),
		Cause: cause,
	}
}

// indexLocked adds the missing indexes to an informer. The caller holds mu.
func (s *entry) indexLocked(i *informer) error {
	for _, index := range s.entries.indexesOf(s.selection.kind) {
		if i.indexed[index.field] {
			continue
		}
		indexer := lightinformer.FieldIndexer(index.field, i.AlwaysCopy, index.extract)
		if err := i.AddIndexers(i.shared, indexer); err != nil {
			return errors.Wrapf(err, "index %q of %s", index.field, s.selection.kind.gvk)
		}
		if i.indexed == nil {
			i.indexed = map[string]bool{}
		}
		i.indexed[index.field] = true
	}
	for _, indexers := range s.indexers[i.indexers:] {
		if err := i.AddIndexers(i.shared, indexers); err != nil {
			return errors.Wrapf(err, "indexers of %s", s.selection.kind.gvk)
		}
		i.indexers++
	}
	return nil
}

// reindex adds the missing indexes to the running informer.
func (s *entry) reindex() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return nil
	}
	return s.indexLocked(s.running)
}

// start runs an informer, and attaches the existing handlers to it.
func (s *entry) start(i *informer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.indexLocked(i); err != nil {
		return err
	}
	i.willList()
	s.running = i
	for _, r := range s.registrations {
		if !r.use.isFreshLocked() {
			s.mail.wantFresh()
		} else if err := r.attachLocked(i); err != nil {
			s.running = nil
			return err
		}
	}
	s.entries.running.Go(func() { // the caller's goroutine is counted in running
		i.shared.RunWithContext(i.life)
		i.helpers.Wait()
	})
	return nil
}

// serve makes reads use the informer.
func (s *entry) serve(i *informer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.Store(i)
}

// stop ends an informer. Reads and handlers no longer use it. The memory of its objects is free
// when the informer has stopped.
func (s *entry) stop(i *informer) {
	s.mu.Lock()
	s.current.Store(nil)
	s.running = nil
	for _, r := range s.registrations {
		r.detachLocked()
	}
	s.mu.Unlock()
	i.end()
	s.env.writes.Stopped(s.selection.kind.gvk.GroupKind())
}
