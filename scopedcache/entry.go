package scopedcache

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	toolscache "k8s.io/client-go/tools/cache"
)

// entry is a scope in the cache, with all that outlives the scope's informers: who needs it, its
// state, and its handlers.
type entry struct {
	selection
	cache *scopedCache

	handles map[*Handle]struct{} // guarded by cache.mu: those who hold it
	pinned  bool                 // guarded by cache.mu: somebody has its informer
	waiting int                  // guarded by cache.mu: readers that wait
	recent  atomic.Bool          // somebody reads it: set by reads, taken back when the scope was idle
	gone    chan struct{}        // closed under cache.mu when nobody needs it any more
	idle    bool                 // set before gone is closed: because nobody read it
	end     context.CancelFunc   // set under cache.mu when the scope is run

	mail *mailbox // what happened, for the goroutine that runs the scope

	current atomic.Pointer[informer] // that reads are served from, nil while they are not

	// held while a state is noted and observers are notified, so that they hear of states in their
	// order; before mu
	notifyMu sync.Mutex

	mu            sync.Mutex                   // before cache.mu
	state         State                        // guarded by mu
	since         time.Time                    // guarded by mu
	lastError     error                        // guarded by mu
	changed       chan struct{}                // guarded by mu: closed and replaced when the state changes
	settled       chan struct{}                // closed under mu when it is first known what a read gets
	observers     map[*Handle]func(ScopeState) // guarded by mu
	running       *informer                    // guarded by mu: that handlers are fed from
	registrations map[*registration]struct{}   // guarded by mu
	indexers      []toolscache.Indexers        // guarded by mu: added to every informer
}

func newEntry(c *scopedCache, k *kind, scope Scope) *entry {
	return &entry{cache: c, selection: selection{kind: k, scope: scope}, state: Syncing, since: time.Now(),
		gone: make(chan struct{}), mail: newMailbox(),
		changed: make(chan struct{}), settled: make(chan struct{}),
		handles: map[*Handle]struct{}{}, registrations: map[*registration]struct{}{},
		observers: map[*Handle]func(ScopeState){}}
}

// await returns the informer to read from, or why there is none. It waits while that is not known.
func (s *entry) await(ctx context.Context) (*informer, error) {
	if running := s.current.Load(); running != nil {
		return running, nil
	}
	for {
		s.mu.Lock()
		running, state, lastError, changed := s.current.Load(), s.state, s.lastError, s.changed
		s.mu.Unlock()
		switch {
		case running != nil:
			return running, nil
		case state == Forbidden:
			return nil, lastError
		case state == NotServed:
			s.mail.markRead()
			return nil, lastError
		}
		select {
		case <-changed:
		case <-s.gone:
			return nil, errors.Wrapf(ErrReleased, "waiting for the informer of %s", s.kind.gvk)
		case <-s.cache.stopped():
			return nil, s.cache.stopError()
		case <-ctx.Done():
			return nil, s.notSynced(context.Cause(ctx))
		}
	}
}

// errStreams is why an informer has not synced whose API server sends objects and does not say
// which is the last.
var errStreams = errors.New(
	"the API server has begun to stream objects, and no bookmark has said yet that these are all; does something on " +
		"the way to it drop bookmarks?")

// lastErrorLocked is why the informer does not sync, nil if nothing is known. mu is held.
func (s *entry) lastErrorLocked() error {
	if s.lastError == nil && s.running != nil && s.running.streams() {
		return errStreams
	}
	return s.lastError
}

// awaitSettled waits until it is known what a read gets.
func (s *entry) awaitSettled(ctx context.Context) error {
	select {
	case <-s.settled:
		return nil
	default:
	}
	select {
	case <-s.settled:
		return nil
	case <-s.gone:
		return errors.Wrapf(ErrReleased, "waiting for the informer of %s", s.kind.gvk)
	case <-s.cache.stopped():
		return s.cache.stopError()
	case <-ctx.Done():
		return s.notSynced(context.Cause(ctx))
	}
}

// notSynced is the error of a wait that ended.
func (s *entry) notSynced(cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &NotSyncedError{GVK: s.kind.gvk, Scope: s.scope, State: s.state, Since: s.since, Last: s.lastErrorLocked(),
		Cause: cause}
}

// indexLocked adds to an informer the indexes that it has not got yet.
func (s *entry) indexLocked(to *informer) error {
	for _, index := range s.cache.indexesOf(s.kind) {
		if to.indexed[index.field] {
			continue
		}
		if err := to.cache.IndexField(context.Background(), index.object, index.field, index.extract); err != nil {
			return errors.Wrapf(err, "index %q of %s", index.field, s.kind.gvk)
		}
		to.indexed[index.field] = true
	}
	for _, indexers := range s.indexers[to.indexers:] {
		if err := to.shared.AddIndexers(indexers); err != nil {
			return errors.Wrapf(err, "indexers of %s", s.kind.gvk)
		}
		to.indexers++
	}
	return nil
}

// reindex adds to the informer that runs the indexes that it has not got yet.
func (s *entry) reindex() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return nil
	}
	return s.indexLocked(s.running)
}

// start runs an informer, with the handlers that there are.
func (s *entry) start(starting *informer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.indexLocked(starting); err != nil {
		return err
	}
	for r := range s.registrations {
		if err := r.attachLocked(starting); err != nil {
			return err
		}
	}
	s.running = starting
	s.cache.running.Go(func() { // the goroutine that calls this is one of those running
		_ = starting.cache.Start(starting.life) // ends with it and never fails otherwise
		starting.helpers.Wait()
	})
	return nil
}

// serve has reads served from the informer.
func (s *entry) serve(by *informer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.Store(by)
}

// stop ends an informer: reads and handlers have no part of it any more. Its objects are free when
// it has stopped.
func (s *entry) stop(stopping *informer) {
	s.mu.Lock()
	s.current.Store(nil)
	s.running = nil
	for r := range s.registrations {
		r.detachLocked()
	}
	s.mu.Unlock()
	stopping.end()
}
