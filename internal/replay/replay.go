package replay

import (
	"maps"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/latch"
)

// Options configure how a Feed calls its handler.
type Options struct {
	// Seen is the record of the objects that the handler received from an earlier feed. The new
	// feed owns the record.
	Seen Seen
	// Call calls note, and then f if note returns true. Call may skip both if the handler must not
	// be called. Between note and f nothing may prevent the call of f. note does not block.
	// Defaults to calling note, and then f if note returns true.
	Call func(note func() bool, f func())
}

// ResumedHandler is a handler that received events from an earlier informer. A scopedcache.Handle
// whose AddEventHandler gets a ResumedHandler feeds it with these Options: once the informer has
// synced, the handler receives a delete event for each object of Options.Seen that does not exist
// any more. The registration that AddEventHandler returns is a Resumable.
type ResumedHandler struct {
	toolscache.ResourceEventHandler
	Options Options
}

// Resumable is the registration of a ResumedHandler.
type Resumable interface {
	toolscache.ResourceEventHandlerRegistration
	// Seen ends the events and returns the objects that the handler has received.
	Seen() Seen
}

// Feed passes the events of one informer after another to one handler, one call at a time. Its
// methods may be called from any goroutine, and do not wait for the handler.
type Feed struct {
	handler toolscache.ResourceEventHandler
	example client.Object // of the kind
	call    func(note func() bool, f func())
	turn    chan struct{} // holds a token while the handler is called

	mu        sync.Mutex
	source    *Source                            // guarded by mu; the source whose events are passed on, nil for none
	delivered map[client.ObjectKey]client.Object // guarded by mu; the objects received from source
	missing   Seen                               // guarded by mu; the objects received from earlier sources only
}

// New returns a feed without a source.
func New(handler toolscache.ResourceEventHandler, example client.Object, options Options) *Feed {
	f := &Feed{
		handler: handler,
		example: example,
		call:    options.Call,
		missing: options.Seen,
		turn:    make(chan struct{}, 1),
	}
	if f.call == nil {
		f.call = func(note func() bool, call func()) {
			if note() {
				call()
			}
		}
	}
	return f
}

// Begin returns the handler for the next informer. From now on the Feed drops events of earlier
// informers.
func (f *Feed) Begin() *Source {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked()
	f.source = &Source{feed: f}
	return f.source
}

// Pause drops the events of all informers so far. A handler call in progress continues.
func (f *Feed) Pause() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked()
}

// Seen pauses the feed and returns the record of the objects that its handler knows.
func (f *Feed) Seen() Seen {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked()
	return maps.Clone(f.missing)
}

// endLocked moves the objects that the handler received from the source to the missing objects.
func (f *Feed) endLocked() {
	if f.source == nil {
		return
	}
	f.source.superseded.Open()
	f.source = nil
	if f.missing == nil {
		f.missing = make(Seen, len(f.delivered))
	}
	for key, received := range f.delivered {
		f.missing[key] = Remember(received)
	}
	f.delivered = nil
}

// Source is the handler for one informer.
type Source struct {
	feed       *Feed
	superseded latch.Latch // the feed no longer passes on events of this source
}

var _ toolscache.ResourceEventHandler = (*Source)(nil)

// Superseded returns a channel that is closed when the feed no longer passes on events of this
// source.
func (s *Source) Superseded() <-chan struct{} { return s.superseded.Done() }

// OnAdd implements toolscache.ResourceEventHandler.
func (s *Source) OnAdd(object any, isInInitialList bool) {
	var deletion *toolscache.DeletedFinalStateUnknown
	s.pass(func() bool { deletion = s.recordLocked(object); return true }, func() {
		if deletion != nil {
			s.feed.handler.OnDelete(*deletion)
		}
		s.feed.handler.OnAdd(object, isInInitialList)
	})
}

// OnUpdate implements toolscache.ResourceEventHandler.
func (s *Source) OnUpdate(old, object any) {
	s.pass(func() bool { s.recordLocked(object); return true }, func() { s.feed.handler.OnUpdate(old, object) })
}

// OnDelete implements toolscache.ResourceEventHandler.
func (s *Source) OnDelete(object any) {
	s.pass(func() bool { s.forgetLocked(object); return true }, func() { s.feed.handler.OnDelete(object) })
}

// EmitMissingDeletes calls the handler's OnDelete for each object that the handler received from an
// earlier informer and that this informer does not have. Call EmitMissingDeletes after the handler
// received all objects of this informer. has reports whether the informer has an object with that
// key.
func (s *Source) EmitMissingDeletes(has func(key string) bool) {
	for _, key := range s.feed.missingNow() {
		var deletion toolscache.DeletedFinalStateUnknown
		s.pass(func() bool {
			previous, ok := s.feed.missing[key]
			if !ok || has(toolscache.ObjectName(key).String()) {
				return false // the object appeared meanwhile
			}
			delete(s.feed.missing, key)
			deletion = previous.lastKnown(s.feed.example, key)
			return true
		}, func() { s.feed.handler.OnDelete(deletion) })
	}
}

// pass waits for its turn and calls the handler. pass skips the call if another source took over or
// if note returns false. pass calls note under the feed's mu, before the handler.
func (s *Source) pass(note func() bool, call func()) {
	select {
	case s.feed.turn <- struct{}{}:
	default:
		select {
		case s.feed.turn <- struct{}{}:
		case <-s.superseded.Done():
			return
		}
	}
	defer func() { <-s.feed.turn }()
	s.feed.call(func() bool {
		s.feed.mu.Lock()
		defer s.feed.mu.Unlock()
		return s.feed.source == s && note()
	}, call)
}

// missingNow returns the keys of the missing objects.
func (f *Feed) missingNow() (keys []client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.missing {
		keys = append(keys, key)
	}
	return keys
}

// recordLocked records that the handler receives an object. If an earlier informer delivered
// another object of the same name, recordLocked returns a deletion of that object, because it is
// gone.
func (s *Source) recordLocked(object any) *toolscache.DeletedFinalStateUnknown {
	received, ok := object.(client.Object)
	if !ok {
		return nil
	}
	key := client.ObjectKeyFromObject(received)
	if s.feed.delivered == nil {
		s.feed.delivered = map[client.ObjectKey]client.Object{}
	}
	s.feed.delivered[key] = received
	previous, ok := s.feed.missing[key]
	if !ok {
		return nil
	}
	delete(s.feed.missing, key)
	if previous.uid == received.GetUID() {
		return nil
	}
	deletion := previous.lastKnown(s.feed.example, key)
	return &deletion
}

// forgetLocked removes an object from the record, because it is gone.
func (s *Source) forgetLocked(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if received, ok := object.(client.Object); ok {
		delete(s.feed.delivered, client.ObjectKeyFromObject(received))
	}
}
