package apiserver

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
)

// MemoryStoreOptions configure a MemoryStore.
type MemoryStoreOptions[T runtime.Object] struct {
	// Resource is the resource, for errors.
	Resource schema.GroupResource
	// Fields are the fields that clients may select by, beyond metadata.name and
	// metadata.namespace. Pass their names to FieldSelectors, too.
	Fields map[string]func(T) string
	// OnGet, if not nil, fills in what changes all the time and is no reason for another version.
	// OnGet gets a copy, which it may change.
	OnGet func(T)
	// OnRead is OnGet for each object of a list and of a watch. Objects share what they point to
	// with the store, so OnRead may only assign to fields of the object itself and of the structs
	// in it. OnRead must be fast, and must not call the store.
	OnRead func(T)
	// History is how many changes are kept, at least, for watches that resume, or twice the number
	// of objects if that is more. At most twice as many are kept. Defaults to 1000.
	History int
	// BookmarkInterval is how often a watch that allows bookmarks gets one. Defaults to a minute.
	BookmarkInterval time.Duration
	// WatchTimeout is how long a client may take to read one event of a watch before the watch ends.
	// A watch that is late by less goes on from History: it has no buffer of its own. Defaults to 30
	// s.
	WatchTimeout time.Duration
}

// MemoryStore is a store in memory, which NewMemoryStore creates: a Lister, Getter and Watcher of
// objects that its owner puts and removes. Embed a pointer to it in a store of your own to add
// verbs. Its methods may be called from any goroutine.
//
// Each change has a resourceVersion, which is at least the time in microseconds when the store
// began to serve, see BeginServing. So versions from before that, of another process too, are too
// old: clients list again.
type MemoryStore[T, TList runtime.Object] struct {
	options MemoryStoreOptions[T]

	mu      sync.RWMutex
	version int64         // guarded by mu; of the last change
	objects map[string]T  // guarded by mu; by key; never changed in place
	keys    []string      // guarded by mu; of objects, sorted
	history []change[T]   // guarded by mu; the last changes, in order
	oldest  int64         // guarded by mu; history has all changes since this version
	changed chan struct{} // guarded by mu; closed at the next change, for the watches that wait for one
}

// change is a change of one object.
type change[T runtime.Object] struct {
	kind     watch.EventType
	object   T // as of this version; for a deletion the last state
	previous T // nil for a creation
	version  int64
}

// NewMemoryStore returns an empty store.
func NewMemoryStore[T, TList runtime.Object](options MemoryStoreOptions[T]) *MemoryStore[T, TList] {
	options.History = cmp.Or(options.History, 1000)
	options.BookmarkInterval = cmp.Or(options.BookmarkInterval, time.Minute)
	options.WatchTimeout = cmp.Or(options.WatchTimeout, 30*time.Second)
	now := time.Now().UnixMicro()
	return &MemoryStore[T, TList]{
		options: options,
		version: now,
		oldest:  now,
		objects: map[string]T{},
		changed: make(chan struct{}),
	}
}

// clockTolerance is how much the clocks of two processes may differ that serve the same objects one
// after the other, if the first one serves for longer than they differ.
const clockTolerance = time.Minute

// BeginServing implements Starter. It makes all versions before the call too old: watches end, and
// watches and lists that go on from such a version get status 410. Until the server starts, another
// process may have served: the leader before this one. The clocks of the two may differ by up to a
// minute, and by less than the time for which the other one served.
func (m *MemoryStore[T, TList]) BeginServing() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.version = max(time.Now().Add(clockTolerance).UnixMicro(), m.version+1)
	m.oldest, m.history = m.version, nil
	m.wakeWatchesLocked()
}

func (m *MemoryStore[T, TList]) wakeWatchesLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// keyOf returns the key of an object: a key sorts by namespace, then by name.
func keyOf(namespace, name string) string { return namespace + "\x00" + name }

// Put stores an object, unless it equals the stored one. Put sets the resourceVersion of object,
// clears its TypeMeta, and keeps object: do not change it any more. An object without a UID gets
// UID and creationTimestamp of the stored object, or new ones. An object of another UID than the
// stored one replaces it, which watches see as a deletion and a creation.
func (m *MemoryStore[T, TList]) Put(object T) {
	metadata := accessorOf(object)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replaceLocked(keyOf(metadata.GetNamespace(), metadata.GetName()), object)
}

// Remove removes an object, and reports whether there was one.
func (m *MemoryStore[T, TList]) Remove(namespace, name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.removeLocked(keyOf(namespace, name))
}

// Modify changes, creates or removes an object as modify returns: next is stored, unless it equals
// the stored object, or removed if keep is false. No other call changes the object meanwhile.
// modify gets a copy, or nil if there is no object, and must not call the store. Modify returns a
// copy of what is stored, or an error of modify, which changes nothing.
func (m *MemoryStore[T, TList]) Modify(namespace, name string, modify func(current T, found bool) (next T, keep bool,
	err error)) (stored T, err error) {
	key := keyOf(namespace, name)
	m.mu.Lock()
	defer m.mu.Unlock()
	current, found := m.objects[key]
	if found {
		current = current.DeepCopyObject().(T)
	}
	next, keep, err := modify(current, found)
	switch {
	case err != nil:
		return stored, err
	case !keep:
		m.removeLocked(key)
		return next, nil
	}
	if metadata := accessorOf(next); keyOf(metadata.GetNamespace(), metadata.GetName()) != key {
		return stored, errors.Errorf("the object has another name than %s", name)
	}
	m.replaceLocked(key, next)
	return next.DeepCopyObject().(T), nil
}

// replaceLocked stores an object, unless it equals the stored one.
func (m *MemoryStore[T, TList]) replaceLocked(key string, object T) {
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // the encoder sets it
	metadata := accessorOf(object)
	existing, found := m.objects[key]
	switch {
	case metadata.GetUID() != "":
	case found:
		metadata.SetUID(accessorOf(existing).GetUID())
		metadata.SetCreationTimestamp(accessorOf(existing).GetCreationTimestamp())
	default:
		rest.FillObjectMetaSystemFields(metadata)
	}
	if found && accessorOf(existing).GetUID() != metadata.GetUID() {
		m.removeLocked(key)
		found = false
	}
	if found {
		metadata.SetResourceVersion(accessorOf(existing).GetResourceVersion())
		if equality.Semantic.DeepEqual(existing, object) {
			return
		}
	}
	m.putLocked(key, object)
}

func (m *MemoryStore[T, TList]) putLocked(key string, object T) {
	existing, found := m.objects[key]
	c := change[T]{kind: watch.Modified, object: object, previous: existing, version: m.nextVersionLocked()}
	accessorOf(object).SetResourceVersion(strconv.FormatInt(c.version, 10))
	if !found {
		c.kind = watch.Added
		at, _ := slices.BinarySearch(m.keys, key)
		m.keys = slices.Insert(m.keys, at, key)
	}
	m.objects[key] = object
	m.recordLocked(c)
}

func (m *MemoryStore[T, TList]) removeLocked(key string) bool {
	existing, found := m.objects[key]
	if !found {
		return false
	}
	delete(m.objects, key)
	if at, ok := slices.BinarySearch(m.keys, key); ok {
		m.keys = slices.Delete(m.keys, at, at+1)
	}
	m.recordLocked(change[T]{kind: watch.Deleted, object: existing, previous: existing, version: m.nextVersionLocked()})
	return true
}

func (m *MemoryStore[T, TList]) nextVersionLocked() int64 {
	m.version = max(time.Now().UnixMicro(), m.version+1)
	return m.version
}

// recordLocked keeps a change, and wakes the watches.
func (m *MemoryStore[T, TList]) recordLocked(c change[T]) {
	m.history = append(m.history, c)
	if limit := max(m.options.History, 2*len(m.objects)); len(m.history) > 2*limit { // seldom, because it copies
		drop := len(m.history) - limit
		m.oldest = m.history[drop-1].version
		m.history = slices.Clone(m.history[drop:])
	}
	m.wakeWatchesLocked()
}

// Get implements Getter.
func (m *MemoryStore[T, TList]) Get(ctx Context, name string, _ *metav1.GetOptions) (T, error) {
	m.mu.RLock()
	found, ok := m.objects[keyOf(ctx.Namespace, name)]
	m.mu.RUnlock()
	if !ok {
		return found, apierrors.NewNotFound(m.options.Resource, name)
	}
	copied := found.DeepCopyObject().(T)
	if m.options.OnGet != nil {
		m.options.OnGet(copied)
	}
	return copied, nil
}

func parseVersion(version string) (int64, error) {
	if version == "" {
		return 0, nil
	}
	parsed, err := strconv.ParseInt(version, 10, 64)
	if err != nil || parsed < 0 {
		return 0, apierrors.NewBadRequest("resourceVersion " + strconv.Quote(version) + " is invalid")
	}
	return parsed, nil
}
