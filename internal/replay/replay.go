package replay

import (
	"maps"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/latch"
	"github.com/latchkey-dev/latchkey/internal/versions"
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
	// Turn is shared by feeds that call one handler, so that one of them calls it at a time.
	// Defaults to a turn of the feed's own.
	Turn Turn
}

// Turn holds a token while a handler is called.
type Turn chan struct{}

// NewTurn returns a turn that feeds may share.
func NewTurn() Turn { return make(Turn, 1) }

// Await returns when no call of the handler is in progress. Another one may begin at once, unless
// all feeds that share the turn have been paused.
func (t Turn) Await() {
	t <- struct{}{}
	<-t
}

// IsIdle reports whether no call of the handler is in progress.
func (t Turn) IsIdle() bool { return len(t) == 0 }

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
	// Seen ends the events and returns the objects that the handler has received. Call it once.
	Seen() Seen
}

// Feed passes the events of one informer after another to one handler, one call at a time. Its
// methods may be called from any goroutine, and do not wait for the handler.
type Feed struct {
	handler toolscache.ResourceEventHandler
	example client.Object // of the kind
	call    func(note func() bool, f func())
	turn    Turn
	shares  bool // the turn, with feeds that may take over

	mu        sync.Mutex
	begun     bool                 // guarded by mu; there was a source
	latest    versions.ByNamespace // guarded by mu; what the handler received
	source    *Source              // guarded by mu; the source whose events are passed on, nil for none
	delivered received             // guarded by mu; the objects received from source
	missing   Seen                 // guarded by mu; the objects received from earlier sources only, nil for none
}

// New returns a feed without a source.
func New(handler toolscache.ResourceEventHandler, example client.Object, options Options) *Feed {
	f := &Feed{
		handler: handler,
		example: example,
		call:    options.Call,
		missing: options.Seen,
		turn:    options.Turn,
		shares:  options.Turn != nil,
	}
	if f.turn == nil {
		f.turn = NewTurn()
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

// Turn returns what calls of the handler have.
func (f *Feed) Turn() Turn { return f.turn }

// Begin returns the handler for the next informer. From now on the Feed drops events of earlier
// informers.
func (f *Feed) Begin() *Source {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked()
	if f.begun {
		f.missing.Outdate() // the next informer adds all of its objects
	}
	f.source, f.begun = &Source{feed: f}, true
	return f.source
}

// Pause drops the events of all informers so far. A handler call in progress continues.
func (f *Feed) Pause() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked()
}

// Seen pauses the feed and returns the record of the objects that its handler knows. The feed keeps
// no record: it may be large, and another feed owns it next.
func (f *Feed) Seen() Seen {
	seen, _ := f.HandOver()
	seen.Outdate() // the next feed may be of another API server
	return seen
}

// HandOver is Seen, for a feed of the same handler at the same API server: that feed adds only
// objects of which the handler has not received the version. latest has the latest versions that
// the handler has received, of objects and of deletions; nil if the feed has a turn of its own.
func (f *Feed) HandOver() (seen Seen, latest versions.ByNamespace) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked()
	seen = f.missing
	f.missing = nil
	return seen, maps.Clone(f.latest)
}

// Latest returns the latest resource version that the handler has received, as HandOver does.
func (f *Feed) Latest() versions.ByNamespace {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.latest)
}

// endLocked moves the objects that the handler received from the source to the missing objects.
func (f *Feed) endLocked() {
	if f.source == nil {
		return
	}
	f.source.superseded.Open()
	f.source = nil
	if f.missing == nil && f.delivered.len() > 0 {
		f.missing = make(Seen, f.delivered.len())
	}
	for received := range f.delivered.all() {
		object := Remember(received)
		object.current = true
		f.missing[client.ObjectKeyFromObject(received)] = object
	}
	f.delivered = received{}
}

// foundLocked removes an object from the missing ones. The last one takes the map along: an empty
// one would keep what it has ever grown to.
func (f *Feed) foundLocked(key client.ObjectKey) {
	delete(f.missing, key)
	if len(f.missing) == 0 {
		f.missing = nil
	}
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

// IsSuperseded reports whether that channel is closed.
func (s *Source) IsSuperseded() bool { return s.superseded.IsOpen() }

// OnAdd implements toolscache.ResourceEventHandler.
func (s *Source) OnAdd(object any, isInInitialList bool) {
	var deletion *toolscache.DeletedFinalStateUnknown
	s.pass(func() (news bool) { deletion, news = s.recordLocked(object); return news }, func() {
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
			s.feed.foundLocked(key)
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
// gone. news is false if the handler has received the object from the feed before.
func (s *Source) recordLocked(object any) (deletion *toolscache.DeletedFinalStateUnknown, news bool) {
	received, ok := object.(client.Object)
	if !ok {
		return nil, true
	}
	key := client.ObjectKeyFromObject(received)
	s.feed.noteLocked(received)
	s.feed.delivered.put(received)
	previous, ok := s.feed.missing[key]
	if !ok {
		return nil, true
	}
	s.feed.foundLocked(key)
	if previous.uid == received.GetUID() {
		return nil, !previous.current || versions.Later(previous.resourceVersion, received.GetResourceVersion()) !=
			previous.resourceVersion
	}
	gone := previous.lastKnown(s.feed.example, key)
	return &gone, true
}

// noteLocked records how far the handler is, for a feed that may take over.
func (f *Feed) noteLocked(received client.Object) {
	if !f.shares {
		return
	}
	if f.latest == nil {
		f.latest = versions.ByNamespace{}
	}
	f.latest.Note(received.GetNamespace(), received.GetResourceVersion())
}

// forgetLocked removes an object from the record, because it is gone.
func (s *Source) forgetLocked(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if received, ok := object.(client.Object); ok {
		s.feed.noteLocked(received)
		s.feed.delivered.remove(client.ObjectKeyFromObject(received))
	}
}
