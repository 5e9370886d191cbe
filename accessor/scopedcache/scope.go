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
)

// scope is what outlives its informers: who needs it, what it is allowed, and the handlers.
type scope struct {
	cache *scoped
	kind  *kind
	where Scope // as asked for

	handles map[*Handle]struct{} // guarded by cache.mu: those who hold it
	pinned  bool                 // guarded by cache.mu: somebody has its informer
	waiting int                  // guarded by cache.mu: readers that wait
	recent  atomic.Bool          // somebody reads it: set by reads, taken back when the scope was idle
	gone    chan struct{}        // closed under cache.mu when nobody needs it any more
	idle    bool                 // set before gone is closed: because nobody read it
	end     context.CancelFunc   // set under cache.mu when the keeper is started

	rightsChanged chan struct{} // holds a token when rights may have changed
	asked         chan struct{} // holds a token when somebody reads what is not served
	distrusted    bool          // the keeper's: the mapper names what is not there
	again         time.Time     // the keeper's: when to ask once more after an event
	idleness      *time.Ticker  // the keeper's
	pace          pace          // the keeper's

	current atomic.Pointer[informer] // that reads are served from, nil while they are not

	telling sync.Mutex // held while a state is noted and told, so that observers hear of states in their order; before mu

	mu            sync.Mutex                   // before cache.mu
	state         State                        // guarded by mu
	since         time.Time                    // guarded by mu
	lastError     error                        // guarded by mu
	lastSettled   State                        // guarded by mu: what a read got when that was last known, Syncing before
	changed       chan struct{}                // guarded by mu: closed and replaced when the state changes
	settled       chan struct{}                // closed under mu when it is first known what a read gets
	observers     map[*Handle]func(ScopeState) // guarded by mu
	running       *informer                    // guarded by mu: that handlers are fed from
	registrations map[*registration]struct{}   // guarded by mu
	indexers      []toolscache.Indexers        // guarded by mu: added to every informer
}

func newScope(c *scoped, k *kind, where Scope) *scope {
	return &scope{cache: c, kind: k, where: where, state: Syncing, lastSettled: Syncing, since: time.Now(),
		gone: make(chan struct{}), rightsChanged: make(chan struct{}, 1), asked: make(chan struct{}, 1),
		changed: make(chan struct{}), settled: make(chan struct{}),
		handles: map[*Handle]struct{}{}, registrations: map[*registration]struct{}{}, observers: map[*Handle]func(ScopeState){}}
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
			poke(s.asked)
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

// errStreams is why an informer has not synced whose API server sends objects and does not say which is the last.
var errStreams = errors.New("the API server has begun to stream objects, and no bookmark has said yet that these are all; does something on the way to it drop bookmarks?")

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
	return &NotSyncedError{GVK: s.kind.gvk, Scope: s.where, State: s.state, Since: s.since, Last: s.lastErrorLocked(), Cause: cause}
}

// poke leaves a token, unless there is one.
func poke(tokens chan<- struct{}) {
	select {
	case tokens <- struct{}{}:
	default:
	}
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
	s.cache.running.Go(func() { // not before the keeper, which is one of those running
		_ = starting.cache.Start(starting.life) // ends with it and never fails otherwise
		starting.helpers.Wait()
	})
	return nil
}

// synced has reads served from the informer.
func (s *scope) synced(by *informer) {
	s.mu.Lock()
	s.current.Store(by)
	s.mu.Unlock()
	by.quiet.Store(false)
	s.become(Synced, nil)
}

// stop ends an informer: reads and handlers have no part of it any more. Its objects are free when it has stopped.
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

// stumble notes an error of an informer that may pass.
func (s *scope) stumble(by *informer, err error) {
	if !by.quiet.Load() {
		s.becomeOf(by, Failing, err)
	}
}

// recover notes that the API server serves an informer.
func (s *scope) recover(by *informer) {
	if by.quiet.Load() {
		return
	}
	if by.shared.HasSynced() {
		s.becomeOf(by, Synced, nil)
		return
	}
	s.becomeOf(by, Syncing, nil)
}

// becomeOf notes what an informer found out, unless it has ended.
func (s *scope) becomeOf(by *informer, state State, err error) {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.mu.Lock()
	if isRead := s.current.Load() == by; s.running != by || (state == Synced) != isRead && state != Failing { // the keeper is about to say so, or has
		s.mu.Unlock()
		return
	}
	s.becomeLocked(state, err)
}

// become notes a state and tells who wants to know, unless it is so already.
func (s *scope) become(state State, err error) {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.mu.Lock()
	s.becomeLocked(state, err)
}

// becomeLocked unlocks mu. telling is held.
func (s *scope) becomeLocked(state State, err error) {
	if state == NotServed && !meta.IsNoMatchError(err) {
		// A 404 of a list must not look as if an object were not there.
		err = errors.WithMessage(&meta.NoKindMatchError{GroupKind: s.kind.gvk.GroupKind(), SearchedVersions: []string{s.kind.gvk.Version}}, errorText(err))
	}
	before := s.lastSettled
	if state.settled() {
		s.settleLocked()
	}
	if s.state == state && errorText(s.lastError) == errorText(err) {
		s.mu.Unlock()
		return
	}
	if s.state != state {
		s.state, s.since = state, time.Now()
	}
	s.lastError = err
	close(s.changed)
	s.changed = make(chan struct{})
	if state.settled() {
		s.lastSettled = state
	}
	observers := slices.Collect(maps.Values(s.observers))
	picture := s.pictureLocked()
	s.mu.Unlock()
	for _, observe := range observers {
		observe(picture)
	}
	s.log(before, picture)
	if s.cache.own.Observe != nil {
		s.cache.own.Observe(before, picture)
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
	s.cache.own.Logger.V(verbosity).Info("Informer changed its state", append([]any{"kind", now.GVK, "scope", now.Scope.String(), "state", now.State}, reason...)...)
}

// settleLocked notes that it is known what a read gets. Handlers whose informer runs are settled when they were told all.
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
	s.telling.Lock()
	defer s.telling.Unlock()
	s.mu.Lock()
	s.observers[handle] = observe
	picture := s.pictureLocked()
	s.mu.Unlock()
	if picture.State != Syncing {
		observe(picture)
	}
}

func (s *scope) unobserve(handle *Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.observers, handle)
}

// picture counts the objects too, which takes time in proportion to them.
func (s *scope) picture() ScopeState {
	s.mu.Lock()
	picture := s.pictureLocked()
	running := s.running
	s.mu.Unlock()
	if running != nil {
		picture.Objects = len(running.store.ListKeys())
	}
	picture.Dependents = s.cache.dependents(s)
	return picture
}

func (s *scope) pictureLocked() ScopeState {
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
