package scopedcache

import (
	"sync"

	"github.com/pkg/errors"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/internal/replay"
)

// registration is a handler of a scope. It outlives the informers that feed it.
type registration struct {
	entry   *entry
	feed    *replay.Feed
	options toolscache.HandlerOptions
	done    chan struct{} // closed by settle
	settle  func()

	inner toolscache.ResourceEventHandlerRegistration // guarded by entry.mu: with the informer that runs
}

// add registers a handler, and feeds it if an informer runs.
func (s *entry) add(handler toolscache.ResourceEventHandler, options toolscache.HandlerOptions,
	feeding replay.Options, settled func()) (*registration, error) {
	r := &registration{entry: s, feed: replay.New(handler, s.kind.example(), feeding), options: options,
		done: make(chan struct{})}
	r.settle = sync.OnceFunc(func() {
		close(r.done)
		if settled != nil {
			settled()
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.gone:
		return nil, errors.Wrapf(ErrReleased, "adding a handler to the informer of %s", s.kind.gvk)
	case <-s.cache.stopped():
		return nil, s.cache.stopError()
	default:
	}
	if s.running != nil {
		if err := r.attachLocked(s.running); err != nil {
			return nil, err
		}
	}
	if s.state.settled() && s.current.Load() == nil {
		r.settle() // there is nothing to be told of
	}
	s.registrations[r] = struct{}{}
	return r, nil
}

// remove ends the registration. A call of the handler that is under way goes on.
func (s *entry) remove(r *registration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.registrations, r)
	r.feed.Pause()
	inner := r.inner
	r.inner = nil
	if s.running == nil || inner == nil {
		return nil // an informer that stops has whoever removes a handler wait for all of them
	}
	return s.running.shared.RemoveEventHandler(inner)
}

// attachLocked feeds the handler from an informer, which is running or about to be. entry.mu is
// held.
func (r *registration) attachLocked(to *informer) error {
	source := r.feed.Begin()
	inner, err := to.shared.AddEventHandlerWithOptions(source, r.options)
	if err != nil {
		r.feed.Pause()
		return errors.Wrapf(err, "adding a handler to the informer of %s", r.entry.kind.gvk)
	}
	r.inner = inner
	to.helpers.Go(func() {
		select {
		case <-inner.HasSyncedChecker().Done():
			source.EmitMissingDeletes(to.has)
			r.settle()
		case <-source.Superseded():
		case <-to.life.Done():
		}
	})
	return nil
}

// detachLocked takes the handler from an informer that is about to stop. entry.mu is held.
func (r *registration) detachLocked() {
	r.inner = nil
	r.feed.Pause()
}

// HasSynced reports whether the handler was told of all there is, or it is known that there is
// nothing to be told of.
func (r *registration) HasSynced() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// HasSyncedChecker implements toolscache.ResourceEventHandlerRegistration.
func (r *registration) HasSyncedChecker() toolscache.DoneChecker {
	return settledChecker{name: r.entry.kind.gvk.String(), done: r.done}
}

// settledChecker tells when something is settled.
type settledChecker struct {
	name string
	done <-chan struct{}
}

func (c settledChecker) Name() string          { return c.name }
func (c settledChecker) Done() <-chan struct{} { return c.done }
