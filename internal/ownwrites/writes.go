package ownwrites

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// maxObjects bounds how many objects of a kind are remembered one by one. Beyond that, the writes
// count as one of all objects. A test lowers it.
var maxObjects = 4096

// forgetInterval is how often all writes of a kind are compared with the informers.
const forgetInterval = 100 * time.Millisecond

// Write is what is known about a write.
type Write struct {
	Object                    // as the write left it, or as it was before its deletion; empty if unknown
	Labels  map[string]string // as the write left them, nil if unknown
	Gone    bool              // the write deleted the object
	Unknown bool              // what the write did is unknown
}

// Writes remember the writes of a cache's clients as long as an informer of the cache may not have
// them. Create Writes with New. Methods may be called from any goroutine.
type Writes struct {
	informers func(schema.GroupKind) []Informer // those that run
	enabled   atomic.Bool
	seq       atomic.Uint64 // of the latest write
	count     atomic.Int64  // of all requirements

	mu      sync.Mutex
	kinds   map[schema.GroupKind]*kindWrites // guarded by mu
	checked time.Time                        // guarded by mu: when those of all kinds were last compared
}

// kindWrites are the requirements of a kind, in all versions and representations.
type kindWrites struct {
	objects map[types.NamespacedName]*requirement // those of all names have an empty name
	checked time.Time                             // when all were last compared
}

// New returns the writes of a cache. informers returns its informers of a kind, in all versions and
// representations; it must not call Writes.
func New(informers func(schema.GroupKind) []Informer) *Writes {
	return &Writes{informers: informers, kinds: map[schema.GroupKind]*kindWrites{}}
}

// Enable makes informers that start from now on know which writes they have.
func (w *Writes) Enable() { w.enabled.Store(true) }

// Enabled reports whether there is a client that records its writes. First lists have to be
// consistent then.
func (w *Writes) Enabled() bool { return w.enabled.Load() }

// Now returns what Since of an informer returns that has not sent its first list yet.
func (w *Writes) Now() uint64 {
	if !w.Enabled() {
		return 0
	}
	return w.seq.Load()
}

// Any reports whether there is a write that an informer may not have.
func (w *Writes) Any() bool { return w.count.Load() > 0 }

// Peek returns the states of an object in the informers.
func (w *Writes) Peek(kind schema.GroupKind, key types.NamespacedName) (stored []Object) {
	for _, informer := range w.informers(kind) {
		if object, found := informer.Stored(key); found {
			stored = append(stored, object)
		}
	}
	return stored
}

// Add records a write of an object that has ended. An empty name stands for all objects in the
// namespace, an empty namespace for all namespaces.
func (w *Writes) Add(kind schema.GroupKind, key types.NamespacedName, write Write) {
	seq := w.seq.Add(1)
	if len(w.informers(kind)) == 0 { // one that starts after that has the write: Now has counted it
		w.forget(kind)
		return
	}
	w.mu.Lock()
	known := w.kinds[kind]
	if known == nil {
		known = &kindWrites{objects: map[types.NamespacedName]*requirement{}, checked: time.Now()}
		w.kinds[kind] = known
	}
	before := len(known.objects)
	if known.objects[key] == nil && before >= maxObjects {
		clear(known.objects)
		key, write = types.NamespacedName{}, Write{Unknown: true}
	}
	r := known.objects[key]
	if r == nil {
		r = &requirement{namespace: key.Namespace, name: key.Name}
		known.objects[key] = r
	}
	r.add(&write, max(seq, r.seq))
	w.count.Add(int64(len(known.objects) - before))
	w.mu.Unlock()
	w.forget(kind, key)
	w.forgetAll()
}

// Concern reports whether a read of a key, or of the kind if the key has no name, may have to
// contain a write. If not, it needs nothing else from Writes.
func (w *Writes) Concern(kind schema.GroupKind, key types.NamespacedName) bool {
	if w.concern(kind, key) {
		return true
	}
	w.forgetAll()
	return false
}

func (w *Writes) concern(kind schema.GroupKind, key types.NamespacedName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.kinds[kind]
	if known == nil || key.Name == "" {
		return known != nil && len(known.objects) > 0
	}
	clusterScoped := types.NamespacedName{Name: key.Name}
	for _, k := range [...]types.NamespacedName{key, clusterScoped, {Namespace: key.Namespace}, {}} {
		if known.objects[k] != nil {
			return true
		}
	}
	return false
}

// Stopped forgets the writes of a kind that only an informer lacked which has stopped.
func (w *Writes) Stopped(kind schema.GroupKind) {
	if !w.Any() {
		return
	}
	w.mu.Lock()
	if known := w.kinds[kind]; known != nil {
		known.checked = time.Time{}
	}
	w.mu.Unlock()
	w.forget(kind)
}

// Required are the writes before a read that an informer may not have.
type Required struct {
	writes *Writes
	kind   schema.GroupKind
	open   []requirement // copies, so that later writes do not make the read wait
	judged Informer      // by the last judgement
	asks   []int         // which of them that was unsure about
	shown  []int         // which of them the informer only shows
	// version is that of the informer before the last judgement.
	version string
}

// BeforeGet returns the writes that a Get must not be older than.
func (w *Writes) BeforeGet(kind schema.GroupKind, key types.NamespacedName) *Required {
	required := &Required{writes: w, kind: kind}
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.kinds[kind]
	if known == nil {
		return required
	}
	keys := []types.NamespacedName{key, {Namespace: key.Namespace}, {}}
	for _, k := range slices.Compact(keys) {
		if r := known.objects[k]; r != nil {
			required.open = append(required.open, *r)
		}
	}
	return required
}

// BeforeList returns the writes that a List must not be older than. An empty namespace or name
// stands for all.
func (w *Writes) BeforeList(kind schema.GroupKind, namespace, name string) *Required {
	required := &Required{writes: w, kind: kind}
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.kinds[kind]; known != nil {
		for _, r := range known.objects {
			if r.concerns(namespace, name) {
				required.open = append(required.open, *r)
			}
		}
	}
	return required
}

// Judgement is whether a read of an informer contains the required writes.
type Judgement struct {
	// Ready means that the read contains them.
	Ready bool
	// Ask means that only a read of the API server is known to contain them.
	Ask bool
	// Key is of an object that the informer lacks, or may lack, unless Ready is set.
	Key types.NamespacedName
	// Version is what the informer lacks; empty if it is a deletion.
	Version string
}

// None reports whether nothing is required, so that no judgement is needed.
func (r *Required) None() bool { return len(r.open) == 0 }

// Judge compares the writes with an informer. After the read, Still says whether that counts.
func (r *Required) Judge(informer Informer) Judgement {
	r.judged, r.asks, r.shown = informer, r.asks[:0], r.shown[:0]
	r.version = informer.Version()
	result, asked := Judgement{Ready: true}, Judgement{}
	for i := range r.open {
		open := &r.open[i]
		switch open.judge(informer) {
		case lacks:
			result = Judgement{Key: open.key(), Version: open.Version}
			if open.gone {
				result.Version = ""
			}
		case unsure:
			if r.asks = append(r.asks, i); len(r.asks) == 1 {
				asked = Judgement{Ask: true, Key: open.key()}
			}
		case shows:
			r.shown = append(r.shown, i)
		case has:
		}
	}
	if len(r.asks) > 0 {
		return asked // the answer contains the others, too
	}
	return result
}

// Still reports whether a read since Judge, which was Ready, contains the writes. An informer that
// does not have an object now may have had it meanwhile, if an older event was on its way.
func (r *Required) Still() bool {
	for _, i := range r.shown {
		if _, found := r.judged.Stored(r.open[i].key()); found {
			return false
		}
	}
	return len(r.shown) == 0 || r.judged.Version() == r.version // the store changes before the version
}

// Listed takes what a list says that was sent after the judgement asked for it, and that had the
// informer's selectors, in the namespace and of the name that are read: its version, and what it
// has of an object. Labels that are nil are none.
func (r *Required) Listed(version string, find func(types.NamespacedName) (Object, map[string]string, bool)) {
	r.writes.mu.Lock()
	defer r.writes.mu.Unlock()
	known := r.writes.kinds[r.kind]
	if known == nil {
		return
	}
	for _, i := range r.asks {
		key := r.open[i].key()
		current := known.objects[key]
		if current == nil || current.seq != r.open[i].seq {
			continue // there was a later write
		}
		if version == "" { // there is nothing to wait for
			delete(known.objects, key)
			r.writes.count.Add(-1)
			continue
		}
		var found *Object
		object, labels, ok := find(key)
		if ok {
			found = &object
		}
		current.learn(r.judged, version, found, labels)
	}
}

// Done forgets the writes that all informers have. Call it after a read.
func (r *Required) Done() {
	keys := make([]types.NamespacedName, len(r.open))
	for i := range r.open {
		keys[i] = r.open[i].key()
	}
	r.writes.forget(r.kind, keys...)
	r.writes.forgetAll()
}

// forgetAll is forget for all kinds, unless that was done a moment ago.
func (w *Writes) forgetAll() {
	w.mu.Lock()
	now := time.Now()
	if now.Sub(w.checked) < forgetInterval {
		w.mu.Unlock()
		return
	}
	w.checked = now
	kinds := slices.Collect(maps.Keys(w.kinds))
	w.mu.Unlock()
	for _, kind := range kinds {
		w.forget(kind)
	}
}

// forget drops the requirements of objects that all informers of the kind meet, and now and then
// those of the whole kind.
func (w *Writes) forget(kind schema.GroupKind, keys ...types.NamespacedName) {
	until := w.seq.Load() // an informer that starts from now on has these writes
	informers := w.informers(kind)
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.kinds[kind]
	if known == nil {
		return
	}
	before := len(known.objects)
	drop := func(key types.NamespacedName, r *requirement) {
		if r.seq <= until && !slices.ContainsFunc(informers, func(i Informer) bool { return r.judge(i) != has }) {
			delete(known.objects, key)
		}
	}
	if now := time.Now(); len(informers) == 0 || now.Sub(known.checked) > forgetInterval {
		known.checked = now
		for key, r := range known.objects {
			drop(key, r)
		}
	} else {
		for _, key := range keys {
			if r := known.objects[key]; r != nil {
				drop(key, r)
			}
		}
	}
	w.count.Add(int64(len(known.objects) - before))
	if len(known.objects) == 0 {
		delete(w.kinds, kind)
	}
}
