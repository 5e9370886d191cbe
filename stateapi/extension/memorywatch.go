package extension

import (
	"runtime/debug"
	"strconv"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"
)

// memoryWatcher is one watch of a MemoryStore.
type memoryWatcher[T runtime.Object] struct {
	selection selection[T]
	events    chan storedEvent[T]
	late      chan struct{} // closed when events was full; guarded by the store's mu
}

// storedEvent is an event whose object the store shares.
type storedEvent[T runtime.Object] struct {
	kind    watch.EventType
	object  T
	version int64
}

// event returns the event of a change for those who see only the selected objects: what enters the
// selection is added, and what leaves it is deleted.
func (s selection[T]) event(c change[T]) (storedEvent[T], bool) {
	var zero T
	was := any(c.previous) != any(zero) && s.matches(c.previous)
	is := c.kind != watch.Deleted && s.matches(c.object)
	switch {
	case was && is:
		return storedEvent[T]{watch.Modified, c.object, c.version}, true
	case is:
		return storedEvent[T]{watch.Added, c.object, c.version}, true
	case was:
		return storedEvent[T]{watch.Deleted, c.previous, c.version}, true
	}
	return storedEvent[T]{}, false
}

// offer hands an event to the watch without waiting. It returns false if the watch is too late.
func (w *memoryWatcher[T]) offer(event storedEvent[T]) bool {
	select {
	case w.events <- event:
		return true
	default:
		close(w.late)
		return false
	}
}

// Watch implements Watcher.
func (m *MemoryStore[T, TList]) Watch(ctx Context, options *metav1.ListOptions) (<-chan WatchEvent[T], error) {
	selection, err := m.newSelection(ctx.Namespace, options)
	if err != nil {
		return nil, err
	}
	w := &memoryWatcher[T]{selection: selection, late: make(chan struct{})}
	first, version, err := m.begin(w, options)
	if err != nil {
		return nil, err
	}
	result := make(chan WatchEvent[T])
	go func() {
		defer close(result)
		defer m.forget(w)
		defer func() {
			if cause := recover(); cause != nil { // of OnRead; the library recovers those of other requests
				klog.FromContext(ctx).Error(errors.Errorf("%v", cause), "A watch panicked", "resource", m.options.Resource,
					"stack", string(debug.Stack()))
			}
		}()
		d := delivery[T]{ctx: ctx, late: w.late, result: result, onRead: m.options.OnRead}
		for _, event := range first {
			if !d.send(event) {
				return
			}
		}
		if wantsInitialEvents(options) && options.AllowWatchBookmarks && !d.bookmark(version, true) {
			return
		}
		m.deliver(w, d, options.AllowWatchBookmarks)
	}()
	return result, nil
}

// begin registers a watch, and returns what it begins with and the version of the store then.
func (m *MemoryStore[T, TList]) begin(w *memoryWatcher[T], options *metav1.ListOptions) (first []storedEvent[T],
	version int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock() // also if a function of Fields panics
	if first, version, err = m.firstEventsLocked(w.selection, options); err != nil {
		return nil, 0, err
	}
	// What changes while the first events are sent must not end the watch.
	w.events = make(chan storedEvent[T], max(m.options.WatchBuffer, len(first)))
	m.watchers[w] = struct{}{}
	return first, version, nil
}

func wantsInitialEvents(options *metav1.ListOptions) bool {
	return options.SendInitialEvents != nil && *options.SendInitialEvents
}

// firstEventsLocked returns what a watch begins with, and the version of the store then.
func (m *MemoryStore[T, TList]) firstEventsLocked(s selection[T], options *metav1.ListOptions) (first []storedEvent[T],
	version int64, err error) {
	since, err := parseVersion(options.ResourceVersion)
	switch {
	case err != nil:
		return nil, 0, err
	case since > m.version:
		return nil, 0, apistorage.NewTooLargeResourceVersionError(uint64(since), uint64(m.version), 1)
	case wantsInitialEvents(options), options.SendInitialEvents == nil && since == 0:
		objects, _, _ := m.pageLocked(s, "", 0)
		for _, object := range objects {
			version, _ := parseVersion(accessorOf(object).GetResourceVersion()) // the store has set it
			first = append(first, storedEvent[T]{watch.Added, object, version})
		}
	case since == 0: // only what comes
	case since < m.oldest:
		return nil, 0, apierrors.NewResourceExpired("too old resource version: " + options.ResourceVersion + " (" +
			strconv.FormatInt(m.oldest, 10) + ")")
	default:
		for _, c := range m.history {
			if event, ok := s.event(c); ok && c.version > since {
				first = append(first, event)
			}
		}
	}
	return first, m.version, nil
}

// deliver sends events until the watch ends, or is too late.
func (m *MemoryStore[T, TList]) deliver(w *memoryWatcher[T], d delivery[T], bookmarks bool) {
	ticker := time.NewTicker(m.options.BookmarkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-w.late:
			return
		case event := <-w.events:
			if !d.send(event) {
				return
			}
		case <-ticker.C:
			if version, upToDate := m.versionOf(w); bookmarks && upToDate && !d.bookmark(version, false) {
				return
			}
		}
	}
}

// versionOf returns the version of the store, and whether the watch has received everything up to
// it.
func (m *MemoryStore[T, TList]) versionOf(w *memoryWatcher[T]) (version int64, upToDate bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, listed := m.watchers[w] // a watch that was too late has missed something
	return m.version, listed && len(w.events) == 0
}

func (m *MemoryStore[T, TList]) forget(w *memoryWatcher[T]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.watchers, w)
}

// delivery sends the events of one watch.
type delivery[T runtime.Object] struct {
	ctx    Context
	late   <-chan struct{}
	result chan<- WatchEvent[T]
	onRead func(T)
}

// send sends a copy of an event's object, whose version is that of the event. It returns false if
// the watch has ended.
func (d delivery[T]) send(event storedEvent[T]) bool {
	object := event.object.DeepCopyObject().(T)
	accessorOf(object).SetResourceVersion(strconv.FormatInt(event.version, 10))
	if d.onRead != nil {
		d.onRead(object)
	}
	return d.put(WatchEvent[T]{Type: event.kind, Object: object})
}

// bookmark tells the client that it has everything up to a version. The first bookmark ends the
// initial events.
func (d delivery[T]) bookmark(version int64, initial bool) bool {
	object := newObject[T]()
	metadata := accessorOf(object)
	metadata.SetResourceVersion(strconv.FormatInt(version, 10))
	if initial {
		metadata.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return d.put(WatchEvent[T]{Type: watch.Bookmark, Object: object})
}

func (d delivery[T]) put(event WatchEvent[T]) bool {
	select {
	case d.result <- event:
		return true
	case <-d.ctx.Done():
		return false
	case <-d.late: // a client that does not read keeps no events
		return false
	}
}
