package scopedcache

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// scope is what outlives its informers: who needs it, what it is allowed, and the handlers.
type scope struct {
	cache *scopedCache
	kind  *kind
	where Scope // as asked for

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

func newScope(c *scopedCache, k *kind, where Scope) *scope {
	return &scope{cache: c, kind: k, where: where, state: Syncing, since: time.Now(),
		gone: make(chan struct{}), mail: newMailbox(),
		changed: make(chan struct{}), settled: make(chan struct{}),
		handles: map[*Handle]struct{}{}, registrations: map[*registration]struct{}{}, observers: map[*Handle]func(
			ScopeState){}}
}

// await returns the informer to read from, or why there is none. It waits while that is not known.
func (s *scope) await(ctx context.Context) (*informer, error) {
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
func (s *scope) lastErrorLocked() error {
	if s.lastError == nil && s.running != nil && s.running.streams() {
		return errStreams
	}
	return s.lastError
}

// awaitSettled waits until it is known what a read gets.
func (s *scope) awaitSettled(ctx context.Context) error {
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
func (s *scope) notSynced(cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &NotSyncedError{GVK: s.kind.gvk, Scope: s.where, State: s.state, Since: s.since, Last: s.lastErrorLocked(),
		Cause: cause}
}

// start runs an informer, with the handlers that there are.
func (s *scope) start(starting *informer) error {
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
func (s *scope) serve(by *informer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.Store(by)
}

// stop ends an informer: reads and handlers have no part of it any more. Its objects are free when
// it has stopped.
func (s *scope) stop(stopping *informer) {
	s.mu.Lock()
	s.current.Store(nil)
	s.running = nil
	for r := range s.registrations {
		r.detachLocked()
	}
	s.mu.Unlock()
	stopping.end()
}

// setState notes a state and notifies the observers.
func (s *scope) setState(e monitor.SetState) {
	state, err := State(e.State), e.Err
	if state == NotServed && !meta.IsNoMatchError(err) {
		// A 404 of a list must not look as if an object were not there.
		err = errors.WithMessage(&meta.NoKindMatchError{
			GroupKind: s.kind.gvk.GroupKind(), SearchedVersions: []string{s.kind.gvk.Version},
		}, errorText(err))
	}
	s.notifyMu.Lock()
	defer s.notifyMu.Unlock()
	s.mu.Lock()
	if state.settled() {
		s.settleLocked()
	}
	s.state, s.since, s.lastError = state, e.Since, err
	close(s.changed)
	s.changed = make(chan struct{})
	observers := slices.Collect(maps.Values(s.observers))
	now := s.snapshotLocked()
	s.mu.Unlock()
	for _, observe := range observers {
		observe(now)
	}
	s.log(State(e.Before), now)
	if s.cache.own.Observe != nil {
		s.cache.own.Observe(State(e.Before), now)
	}
}

// log says what a person must see: that something may not be read, or can be read again.
func (s *scope) log(before State, now ScopeState) {
	verbosity := 0
	switch {
	case now.State == before:
		return // it is as it was after the last failure
	case now.State == Failing:
		verbosity = 1
	case now.State == Syncing, now.State == Synced && before == Syncing:
		return
	}
	reason := []any{}
	if now.LastError != nil {
		reason = []any{"error", now.LastError.Error()}
	}
	s.cache.own.Logger.V(verbosity).Info("Informer state changed",
		append([]any{"kind", now.GVK, "scope", now.Scope.String(), "state", now.State}, reason...)...)
}

// settleLocked notes that it is known what a read gets. Handlers whose informer runs are settled
// when they were told all.
func (s *scope) settleLocked() {
	select {
	case <-s.settled:
	default:
		close(s.settled)
	}
	if s.current.Load() == nil { // there is nothing to be told of
		for r := range s.registrations {
			r.settle()
		}
	}
}

// observe has an observer told from now on, and what the state is unless that is Syncing.
func (s *scope) observe(handle *Handle, observe func(ScopeState)) {
	s.notifyMu.Lock()
	defer s.notifyMu.Unlock()
	s.mu.Lock()
	s.observers[handle] = observe
	snapshot := s.snapshotLocked()
	s.mu.Unlock()
	if snapshot.State != Syncing {
		observe(snapshot)
	}
}

func (s *scope) unobserve(handle *Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.observers, handle)
}

// snapshot counts the objects too, which takes time in proportion to them.
func (s *scope) snapshot() ScopeState {
	s.mu.Lock()
	snapshot := s.snapshotLocked()
	running := s.running
	s.mu.Unlock()
	if running != nil {
		snapshot.Objects = len(running.store.ListKeys())
	}
	snapshot.Dependents = s.cache.dependents(s)
	return snapshot
}

func (s *scope) snapshotLocked() ScopeState {
	return ScopeState{GVK: s.kind.gvk, Representation: s.kind.representation, Scope: s.where,
		State: s.state, Since: s.since, LastError: s.lastError}
}

// indexLocked adds to an informer the indexes that it has not got yet.
func (s *scope) indexLocked(to *informer) error {
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
func (s *scope) reindex() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return nil
	}
	return s.indexLocked(s.running)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
