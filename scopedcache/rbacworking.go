package scopedcache

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// watchedKinds is how many kinds an RBACWatcher watches.
const watchedKinds = 4

// watchedKind is the watch of one kind.
type watchedKind struct {
	current      bool      // it was synced, and nothing but failures has come since
	failingSince time.Time // zero if it does not fail
	reason       error     // why it cannot be watched, or fails; nil if it is
	indexed      bool      // the index has had all objects of the informer, and what came since
}

// record records the state of the watch of a kind.
func (e *RBACWatcher) record(state ScopeState) {
	e.mu.Lock()
	kind := e.kinds[state.GVK]
	before := kind.reason
	switch state.State {
	case StateSynced:
		kind = watchedKind{current: true, indexed: kind.indexed}
	case StateFailing:
		kind.failingSince, kind.reason = state.Since, state.LastError
	default:
		kind = watchedKind{reason: state.LastError}
	}
	e.kinds[state.GVK] = kind
	var listeners []*rbacListener
	if errorText(before) != errorText(kind.reason) {
		listeners = slices.Collect(maps.Keys(e.listeners))
	}
	e.mu.Unlock()
	e.update()
	for _, listener := range listeners {
		listener.watched()
	}
}

// delivered records that the index has all objects of a kind's informer.
func (e *RBACWatcher) delivered(gvk schema.GroupVersionKind) {
	e.mu.Lock()
	kind := e.kinds[gvk]
	kind.indexed = true
	e.kinds[gvk] = kind
	listeners := slices.Collect(maps.Keys(e.listeners))
	e.mu.Unlock()
	for _, listener := range listeners {
		listener.watched()
	}
}

// update decides whether all changes of RBAC are reported, and notifies the caches if that has
// changed. While they are, caches review access less often.
func (e *RBACWatcher) update() {
	e.mu.Lock()
	working := !e.closed && len(e.kinds) == watchedKinds
	var until time.Time // when the first of the watches that fail has failed for too long
	for _, kind := range e.kinds {
		end := kind.failingSince.Add(e.grace)
		working = working && kind.current && (kind.failingSince.IsZero() || time.Now().Before(end))
		if !kind.failingSince.IsZero() && (until.IsZero() || end.Before(until)) {
			until = end
		}
	}
	if e.recheck != nil {
		e.recheck.Stop()
	}
	if working && !until.IsZero() {
		e.recheck = time.AfterFunc(time.Until(until), e.update)
	}
	var listeners []*rbacListener
	if e.working.Swap(working) != working {
		listeners = slices.Collect(maps.Keys(e.listeners))
	}
	e.mu.Unlock()
	for _, listener := range listeners {
		listener.watched()
	}
}

// eventsWatched returns whether all changes of RBAC that concern the identity are reported.
func (s *environment) eventsWatched() (event monitor.EventsWatched) {
	for _, e := range []*RBACWatcher{s.options.RBACWatcher, s.rbacWatcher} {
		if e == nil || !e.working.Load() {
			continue
		}
		event.Watched = true
		if latest := e.latestChange(); latest.After(event.Latest) {
			event.Latest = latest
		}
	}
	return event
}

// latestChange returns when the watcher last learned of a change that concerns any identity, or
// began to watch; zero for never.
func (e *RBACWatcher) latestChange() time.Time {
	return ptr.Deref(e.latest.Load(), time.Time{})
}
