package apiserver

import (
	"cmp"
	"runtime/debug"
	"slices"
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

// cursor is where a watch is in the store. A watch has no buffer: it reads the store's history, one
// event at a time, so an idle watch costs the same whatever the number of objects.
type cursor[T runtime.Object] struct {
	selection selection[T]
	version   int64  // the watch has every change up to this version
	initial   bool   // the initial events are being sent
	after     string // while initial: those of the keys up to this one have been sent
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

// Watch implements Watcher.
func (m *MemoryStore[T, TList]) Watch(ctx Context, options *metav1.ListOptions) (<-chan WatchEvent[T], error) {
	selection, err := m.newSelection(ctx.Namespace, options)
	if err != nil {
		return nil, err
	}
	c, err := m.begin(selection, options)
	if err != nil {
		return nil, err
	}
	result := make(chan WatchEvent[T])
	go func() {
		defer close(result)
		defer func() {
			if cause := recover(); cause != nil { // of OnRead or Fields; the library recovers those of other requests
				klog.FromContext(ctx).Error(errors.Errorf("%v", cause), "A watch panicked", "resource", m.options.Resource,
					"stack", string(debug.Stack()))
			}
		}()
		m.deliver(&c, delivery[T]{ctx: ctx, patience: m.options.WatchTimeout, result: result, onRead: m.options.OnRead},
			options)
	}()
	return result, nil
}

func wantsInitialEvents(options *metav1.ListOptions) bool {
	return options.SendInitialEvents != nil && *options.SendInitialEvents
}

// begin returns where a watch begins.
func (m *MemoryStore[T, TList]) begin(s selection[T], options *metav1.ListOptions) (cursor[T], error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	since, err := parseVersion(options.ResourceVersion)
	c := cursor[T]{selection: s, version: m.version}
	switch {
	case err != nil:
		return c, err
	case since > m.version:
		return c, apistorage.NewTooLargeResourceVersionError(uint64(since), uint64(m.version), 1)
	case wantsInitialEvents(options), options.SendInitialEvents == nil && since == 0:
		c.initial = true
	case since == 0: // only what comes
	case since < m.oldest:
		return c, tooOld(since, m.oldest)
	default:
		c.version = since
	}
	return c, nil
}

func tooOld(version, oldest int64) error {
	return apierrors.NewResourceExpired("too old resource version: " + strconv.FormatInt(version, 10) + " (" +
		strconv.FormatInt(oldest, 10) + ")")
}

// deliver sends events until the watch ends, or its client is too slow. If the history does not
// reach back to where the watch is, the last event is an error with status 410.
func (m *MemoryStore[T, TList]) deliver(c *cursor[T], d delivery[T], options *metav1.ListOptions) {
	ticker := time.NewTicker(m.options.BookmarkInterval)
	defer ticker.Stop()
	endOfInitial := wantsInitialEvents(options) && options.AllowWatchBookmarks
	for {
		event, found, changed, err := m.next(c)
		switch {
		case err != nil:
			d.put(WatchEvent[T]{Type: watch.Error, Err: err})
			return
		case found:
			if !d.send(event) {
				return
			}
			continue
		case endOfInitial:
			if endOfInitial = false; !d.bookmark(c.version, true) {
				return
			}
		}
		select {
		case <-d.ctx.Done():
			return
		case <-changed:
		case <-ticker.C:
			if options.AllowWatchBookmarks && !d.bookmark(c.version, false) {
				return
			}
		}
	}
}

// next returns the next event of a watch, or if there is none, the channel that is closed at the
// next change.
//
// Before each object of the initial events, all changes so far are looked at: those of keys that
// were sent are events, and the others count when their key's turn comes. So the initial events
// need no copy of the list, and no event is lost or sent twice.
func (m *MemoryStore[T, TList]) next(c *cursor[T]) (event storedEvent[T], found bool, changed <-chan struct{},
	err error) {
	m.mu.RLock()
	defer m.mu.RUnlock() // also if a function of Fields panics
	if c.version < m.oldest {
		return event, false, nil, tooOld(c.version, m.oldest)
	}
	first, _ := slices.BinarySearchFunc(m.history, c.version+1, func(change change[T], version int64) int {
		return cmp.Compare(change.version, version)
	})
	for _, change := range m.history[first:] {
		c.version = change.version
		if c.initial && keyOfObject(change.object) > c.after {
			continue
		}
		if event, found = c.selection.event(change); found {
			return event, true, nil, nil
		}
	}
	c.version = m.version
	if event, found = m.nextInitialLocked(c); found {
		return event, true, nil, nil
	}
	return event, false, m.changed, nil
}

// nextInitialLocked returns the next of the initial events.
func (m *MemoryStore[T, TList]) nextInitialLocked(c *cursor[T]) (event storedEvent[T], found bool) {
	if !c.initial {
		return event, false
	}
	at, hit := slices.BinarySearch(m.keys, c.after)
	if hit {
		at++
	}
	for _, key := range m.keys[at:] {
		c.after = key
		if object := m.objects[key]; c.selection.hasKey(key) && c.selection.matches(object) {
			version, _ := parseVersion(accessorOf(object).GetResourceVersion()) // the store has set it
			return storedEvent[T]{watch.Added, object, version}, true
		}
	}
	c.initial = false
	return event, false
}

func keyOfObject[T runtime.Object](object T) string {
	metadata := accessorOf(object)
	return keyOf(metadata.GetNamespace(), metadata.GetName())
}

// delivery sends the events of one watch.
type delivery[T runtime.Object] struct {
	ctx      Context
	patience time.Duration
	result   chan<- WatchEvent[T]
	onRead   func(T)
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

// put returns false if the watch has ended, or its client does not read. Such a client keeps this
// one event.
func (d delivery[T]) put(event WatchEvent[T]) bool {
	if d.ctx.Err() != nil {
		return false
	}
	select {
	case d.result <- event:
		return true
	default:
	}
	timer := time.NewTimer(d.patience)
	defer timer.Stop()
	select {
	case d.result <- event:
		return true
	case <-d.ctx.Done():
		return false
	case <-timer.C:
		return false
	}
}
