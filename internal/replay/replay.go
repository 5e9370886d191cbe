package replay

import (
	"maps"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Options say how a handler is called.
type Options struct {
	// Known is what the handler was told of by an earlier feed. The new one owns it.
	Known Known
	// Call calls f unless the handler must not be called, or note says no. note must be called if f
	// would be, before it, with nothing in between that could keep f from being called; it does not
	// block. Defaults to just that.
	Call func(note func() bool, f func())
}

// Feed passes the events of one informer after another to one handler, one call at a time. Its
// methods may be called from any goroutine, and do not wait for the handler.
type Feed struct {
	handler toolscache.ResourceEventHandler
	example client.Object // of the kind
	call    func(note func() bool, f func())
	turn    chan struct{} // holds a token while the handler is called

	mu      sync.Mutex
	source  *Source                            // guarded by mu; whose events are passed on, nil for nobody's
	told    map[client.ObjectKey]client.Object // guarded by mu; what the handler was told of by source
	missing Known                              // guarded by mu; what it was told of by earlier ones
}

// New returns a feed without a source.
func New(handler toolscache.ResourceEventHandler, example client.Object, options Options) *Feed {
	f := &Feed{handler: handler, example: example, call: options.Call, missing: options.Known,
		turn: make(chan struct{}, 1)}
	if f.call == nil {
		f.call = func(note func() bool, call func()) {
			if note() {
				call()
			}
		}
	}
	return f
}

// Begin returns the handler for the next informer. Events of earlier ones are dropped from now on.
func (f *Feed) Begin() *Source {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked()
	f.source = &Source{feed: f, superseded: make(chan struct{})}
	return f.source
}

// Pause drops the events of informers there were. A call of the handler that is under way goes on.
func (f *Feed) Pause() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked()
}

// Known pauses the feed and returns what its handler knows of.
func (f *Feed) Known() Known {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked()
	return maps.Clone(f.missing)
}

// endLocked turns what the handler was told of by the source into what is missing.
func (f *Feed) endLocked() {
	if f.source == nil {
		return
	}
	close(f.source.superseded)
	f.source = nil
	if f.missing == nil {
		f.missing = make(Known, len(f.told))
	}
	for key, shown := range f.told {
		f.missing[key] = Remember(shown)
	}
	f.told = nil
}

// Source is the handler for one informer.
type Source struct {
	feed       *Feed
	superseded chan struct{} // closed when events of this source are not passed on any more
}

var _ toolscache.ResourceEventHandler = (*Source)(nil)

// Superseded is closed when events of this source are not passed on any more.
func (s *Source) Superseded() <-chan struct{} { return s.superseded }

// OnAdd implements toolscache.ResourceEventHandler.
func (s *Source) OnAdd(object any, isInInitialList bool) {
	var gone *toolscache.DeletedFinalStateUnknown
	s.pass(func() bool { gone = s.toldLocked(object); return true }, func() {
		if gone != nil {
			s.feed.handler.OnDelete(*gone)
		}
		s.feed.handler.OnAdd(object, isInInitialList)
	})
}

// OnUpdate implements toolscache.ResourceEventHandler.
func (s *Source) OnUpdate(before, object any) {
	s.pass(func() bool { s.toldLocked(object); return true }, func() { s.feed.handler.OnUpdate(before, object) })
}

// OnDelete implements toolscache.ResourceEventHandler.
func (s *Source) OnDelete(object any) {
	s.pass(func() bool { s.forgetLocked(object); return true }, func() { s.feed.handler.OnDelete(object) })
}

// TellMissing tells the handler of what was deleted since it was told of it by an earlier informer.
// Call it once the handler was told of all that is there. has tells whether the informer has an
// object of that key.
func (s *Source) TellMissing(has func(key string) bool) {
	for _, key := range s.feed.missingNow() {
		var gone toolscache.DeletedFinalStateUnknown
		s.pass(func() bool {
			before, ok := s.feed.missing[key]
			if !ok || has(keyString(key)) {
				return false // it has come meanwhile
			}
			delete(s.feed.missing, key)
			gone = before.lastKnown(s.feed.example, key)
			return true
		}, func() { s.feed.handler.OnDelete(gone) })
	}
}

// pass calls the handler in its turn, unless another source took over, or note, which is called
// before that under the feed's mu, says no.
func (s *Source) pass(note func() bool, call func()) {
	select {
	case s.feed.turn <- struct{}{}:
	case <-s.superseded:
		return
	}
	defer func() { <-s.feed.turn }()
	s.feed.call(func() bool {
		s.feed.mu.Lock()
		defer s.feed.mu.Unlock()
		return s.feed.source == s && note()
	}, call)
}

// missingNow are the names of what is missing.
func (f *Feed) missingNow() (keys []client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.missing {
		keys = append(keys, key)
	}
	return keys
}

// toldLocked notes that the handler is being told of an object. If it was told of another one of
// the same name by an earlier informer, that one is returned, for it is gone.
func (s *Source) toldLocked(object any) *toolscache.DeletedFinalStateUnknown {
	shown, ok := object.(client.Object)
	if !ok {
		return nil
	}
	key := client.ObjectKeyFromObject(shown)
	if s.feed.told == nil {
		s.feed.told = map[client.ObjectKey]client.Object{}
	}
	s.feed.told[key] = shown
	before, ok := s.feed.missing[key]
	if !ok {
		return nil
	}
	delete(s.feed.missing, key)
	if before.uid == shown.GetUID() {
		return nil
	}
	gone := before.lastKnown(s.feed.example, key)
	return &gone
}

// forgetLocked notes that an object is gone.
func (s *Source) forgetLocked(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if shown, ok := object.(client.Object); ok {
		delete(s.feed.told, client.ObjectKeyFromObject(shown))
	}
}
