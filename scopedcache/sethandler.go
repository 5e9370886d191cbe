package scopedcache

import (
	"context"
	"maps"
	"slices"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/internal/latch"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/internal/versions"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/members"
)

// setHandler is an event handler of a set of namespaces. It has a feed for each informer, one of
// which calls the handler at a time, and a record of the objects that it knows otherwise.
type setHandler struct {
	set     *namespaceSet
	handler toolscache.ResourceEventHandler
	feeding replay.Options // of each feed, without Seen
	options toolscache.HandlerOptions
	done    latch.Latch

	feeds   map[string]*registration // guarded by set.mu: by namespace
	latest  versions.ByNamespace     // guarded by set.mu: the latest that feeds that ended delivered
	resumed versions.ByNamespace     // guarded by set.mu: the latest of what is known from before

	mu       sync.Mutex              // after set.mu
	record   replay.Seen             // guarded by mu: what nothing feeds
	deleting map[string]*replay.Feed // guarded by mu: delivers deletions, by namespace
}

var _ replay.Resumable = (*setHandler)(nil)

// addHandler registers a handler, and feeds it from the informers that feed the others.
func (s *namespaceSet) addHandler(handler toolscache.ResourceEventHandler,
	options toolscache.HandlerOptions) (*setHandler, error) {
	h := &setHandler{
		set:      s,
		handler:  handler,
		options:  options,
		feeds:    map[string]*registration{},
		record:   replay.Seen{},
		latest:   versions.ByNamespace{},
		deleting: map[string]*replay.Feed{},
	}
	if resumed, ok := handler.(replay.ResumedHandler); ok {
		h.handler, h.feeding = resumed.ResourceEventHandler, resumed.Options
		maps.Copy(h.record, resumed.Options.Seen)
		h.resumed = resumed.Options.Seen.Latest()
		h.feeding.Seen = nil
	}
	h.feeding.Turn = replay.NewTurn()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, s.released("adding a handler to the informers")
	}
	if s.user.hasEnded() {
		return nil, s.user.stopError()
	}
	for namespace := range s.held {
		if !s.machine.Feeds(namespace) {
			continue
		}
		if err := h.feed(namespace); err != nil {
			h.removeLocked()
			return nil, err
		}
	}
	s.handlers = append(s.handlers, h)
	s.poke() // what it knows may be of namespaces that have left, and it may have all objects
	return h, nil
}

// do does what the machine says for this handler. The caller holds set.mu.
func (h *setHandler) do(effect members.Effect) {
	switch effect.Do {
	case members.Feed:
		// An informer that has ended ends the set, too, and one that is misconfigured reports it.
		_ = h.feed(effect.Namespace)
	case members.Keep:
		h.keep(effect.Namespace)
	case members.Delete:
		h.delete(effect.Namespace)
	}
}

// feed makes the informer of a namespace, or of all of them, feed the handler. The caller holds
// set.mu.
func (h *setHandler) feed(namespace string) error {
	feeding := h.feeding
	feeding.Seen = h.take(namespace)
	handler := replay.ResumedHandler{ResourceEventHandler: h.handler, Options: feeding}
	r, err := h.set.held[namespace].add(handler, h.options, registrationEvents{settled: h.set.poke})
	if err != nil {
		h.put(feeding.Seen)
		return err
	}
	h.feeds[namespace] = r
	return nil
}

// take removes what is on record of a namespace, or of all of them, and returns it. Deletions that
// have not been delivered are no longer.
func (h *setHandler) take(namespace string) replay.Seen {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, feed := range h.deleting {
		if namespace == members.All || name == namespace {
			seen, _ := feed.HandOver()
			maps.Copy(h.record, seen)
			delete(h.deleting, name)
		}
	}
	if namespace == members.All {
		taken := h.record
		h.record = replay.Seen{}
		return taken
	}
	taken := replay.Seen{}
	for key, object := range h.record {
		if key.Namespace == namespace {
			taken[key] = object
			delete(h.record, key)
		}
	}
	return taken
}

// put adds to what is on record.
func (h *setHandler) put(seen replay.Seen) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.Copy(h.record, seen)
}

// keep ends a feed. What the handler knows goes on record. The caller holds set.mu.
func (h *setHandler) keep(namespace string) {
	r := h.feeds[namespace]
	if r == nil {
		return
	}
	delete(h.feeds, namespace)
	_ = r.use.entry.remove(r) // fails only for another informer's handler
	seen, latest := r.feed.HandOver()
	h.latest.NoteAll(latest)
	h.put(seen)
}

// received returns the latest versions that the handler has received. The caller holds set.mu.
func (h *setHandler) received() versions.ByNamespace {
	received := maps.Clone(h.latest)
	for _, r := range h.feeds {
		received.NoteAll(r.feed.Latest())
	}
	return received
}

// delete makes the handler receive a deletion for each object on record of the namespace.
func (h *setHandler) delete(namespace string) {
	seen := h.take(namespace)
	delete(h.latest, namespace)
	delete(h.resumed, namespace)
	if len(seen) == 0 {
		return
	}
	feeding := h.feeding
	feeding.Seen = seen
	feed := replay.New(h.handler, h.set.kind.example, feeding)
	source := feed.Begin()
	h.mu.Lock()
	h.deleting[namespace] = feed
	h.mu.Unlock()
	stop := context.AfterFunc(h.set.user.life, feed.Pause) // the handler may hang
	started := h.set.entries.goWhileRunning(func() {
		defer stop()
		source.EmitMissingDeletes(func(string) bool { return false })
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.deleting[namespace] == feed {
			delete(h.deleting, namespace)
			left, _ := feed.HandOver() // what the handler was not called for, because it has ended
			maps.Copy(h.record, left)
		}
	})
	if !started { // the cache has stopped, and the handler with it
		stop()
	}
}

// recorded returns the namespaces of the objects on record.
func (h *setHandler) recorded() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := map[string]struct{}{}
	for key := range h.record {
		found[key.Namespace] = struct{}{}
	}
	return slices.Collect(maps.Keys(found))
}

// hasAll reports whether the handler has received all objects of every informer that feeds it, and
// each does that may.
func (h *setHandler) hasAll() bool {
	h.set.mu.Lock()
	defer h.set.mu.Unlock()
	if !h.set.machine.AllFeed() {
		return false
	}
	for _, r := range h.feeds {
		if !r.done.IsOpen() {
			return false
		}
	}
	return true
}

// Seen implements replay.Resumable.
func (h *setHandler) Seen() replay.Seen {
	h.set.mu.Lock()
	defer h.set.mu.Unlock()
	seen := replay.Seen{}
	for _, r := range h.feeds {
		maps.Copy(seen, r.feed.Seen())
	}
	h.removeLocked()
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.Copy(seen, h.record)
	seen.Outdate()
	return seen
}

// removeLocked ends the registration. The caller holds set.mu.
func (h *setHandler) removeLocked() {
	for _, r := range h.feeds {
		_ = r.use.entry.remove(r)
	}
	clear(h.feeds)
	h.put(h.take(members.All)) // deletions that have not been delivered end
	h.set.handlers = slices.DeleteFunc(h.set.handlers, func(other *setHandler) bool { return other == h })
}

// HasSynced reports whether the handler has received all objects, or it is known that there are
// none to deliver.
func (h *setHandler) HasSynced() bool { return h.done.IsOpen() }

// HasSyncedChecker implements toolscache.ResourceEventHandlerRegistration.
func (h *setHandler) HasSyncedChecker() toolscache.DoneChecker {
	return settledChecker{name: h.set.name(), done: &h.done}
}
