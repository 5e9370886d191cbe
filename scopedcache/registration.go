package scopedcache

import (
	"slices"

	"github.com/pkg/errors"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/internal/latch"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/lightinformer"
)

// registration is an event handler of a scope. A registration outlives the informers that feed it.
type registration struct {
	use     *use
	feed    *replay.Feed
	options toolscache.HandlerOptions
	done    latch.Latch // opened by settle
	events  registrationEvents

	inner toolscache.ResourceEventHandlerRegistration // guarded by entry.mu: at the running informer
}

// registrationEvents are called when something becomes of a registration. They may be nil, and must
// not block.
type registrationEvents struct {
	settled   func() // once: the handler has all objects, or there are none to deliver
	delivered func() // for each informer: the handler has all of its objects
}

// add registers a handler, and feeds it if an informer runs.
func (u *use) add(handler toolscache.ResourceEventHandler, options toolscache.HandlerOptions,
	events registrationEvents) (*registration, error) {
	s := u.entry
	var feeding replay.Options
	if resumed, ok := handler.(replay.ResumedHandler); ok {
		handler, feeding = resumed.ResourceEventHandler, resumed.Options
	}
	feed := replay.New(handler, s.selection.kind.example, feeding)
	r := &registration{use: u, feed: feed, options: options, events: events}
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.gone.IsOpen() {
		return nil, u.endedError("adding a handler to the informer of")
	}
	if u.user.hasEnded() {
		return nil, u.user.stopError()
	}
	switch {
	case s.running == nil:
	case !u.isFreshLocked():
		s.mail.wantFresh()
	default:
		if err := r.attachLocked(s.running); err != nil {
			return nil, err
		}
	}
	if s.state.settled() && s.current.Load() == nil {
		r.settle() // there are no objects to deliver
	}
	s.registrations = append(s.registrations, r)
	return r, nil
}

// settle records that the handler has received all objects, or that there are none to deliver.
func (r *registration) settle() {
	if r.done.Open() && r.events.settled != nil {
		r.events.settled()
	}
}

// remove ends the registration. A call of the handler that is in progress continues.
func (s *entry) remove(r *registration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registrations = slices.DeleteFunc(s.registrations, func(other *registration) bool { return other == r })
	r.feed.Pause()
	s.entries.mu.Lock()
	r.use.user.leaveTurnLocked(r.feed.Turn())
	s.entries.mu.Unlock()
	inner := r.inner
	r.inner = nil
	if s.running == nil || inner == nil {
		return nil // removing a handler from a stopping informer would wait for all of its handlers
	}
	return s.running.shared.RemoveEventHandler(inner)
}

// removeAll ends the registrations of a use that has ended.
func (s *entry) removeAll(of *use) {
	for _, r := range s.registrationsOf(of) {
		_ = s.remove(r) // fails only for another informer's handler
	}
}

// registrationsOf returns the registrations of a use.
func (s *entry) registrationsOf(of *use) (own []*registration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.registrations {
		if r.use == of {
			own = append(own, r)
		}
	}
	return own
}

// attachLocked makes an informer feed the handler. The informer runs, or is about to run. The
// caller holds entry.mu.
func (r *registration) attachLocked(i *informer) error {
	source := r.feed.Begin()
	inner, err := i.addHandler(source, r.options, func() {
		if source.IsSuperseded() {
			return // objects may have been dropped
		}
		source.EmitMissingDeletes(i.has)
		r.settle()
		if r.events.delivered != nil {
			r.events.delivered()
		}
	})
	if err != nil {
		r.feed.Pause()
		return errors.Wrapf(err, "adding a handler to the informer of %s", r.use.entry.selection.kind.gvk)
	}
	r.inner = inner
	return nil
}

// addHandler adds a source to the informer. synced is called when the source has received the
// objects that there are. There may be no call if the source has been superseded before.
func (i *informer) addHandler(source *replay.Source, options toolscache.HandlerOptions,
	synced func()) (toolscache.ResourceEventHandlerRegistration, error) {
	if light, ok := i.shared.(*lightinformer.Informer); ok {
		return light.AddEventHandlerThen(source, options, synced)
	}
	inner, err := i.shared.AddEventHandlerWithOptions(source, options)
	if err != nil {
		return nil, err
	}
	i.helpers.Go(func() {
		select {
		case <-inner.HasSyncedChecker().Done():
			synced()
		case <-source.Superseded():
		case <-i.life.Done():
		}
	})
	return inner, nil
}

// detachLocked detaches the handler from an informer that is about to stop. The caller holds
// entry.mu.
func (r *registration) detachLocked() {
	r.inner = nil
	r.feed.Pause()
}

// HasSynced reports whether the handler has received all objects, or it is known that there are
// none to deliver.
func (r *registration) HasSynced() bool { return r.done.IsOpen() }

// HasSyncedChecker implements toolscache.ResourceEventHandlerRegistration.
func (r *registration) HasSyncedChecker() toolscache.DoneChecker {
	return settledChecker{name: r.use.entry.selection.kind.gvk.String(), done: &r.done}
}

// settledChecker is a DoneChecker for a latch that is opened when a scope or registration is
// settled.
type settledChecker struct {
	name string
	done *latch.Latch
}

func (c settledChecker) Name() string          { return c.name }
func (c settledChecker) Done() <-chan struct{} { return c.done.Done() }
