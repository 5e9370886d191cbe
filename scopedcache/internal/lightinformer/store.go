package lightinformer

import (
	"reflect"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/deepcall"
)

// store is what the Reflector writes to. The Reflector calls Resync from another goroutine than the
// other methods.
type store struct {
	*Informer
	// streamed has the objects that a list streams by key, which are transformed already; nil when no
	// list is streamed. Other informers may use them too, so they must not be transformed again. A
	// stream that ends early begins anew with the same keys, so streamed does not grow without bound.
	streamed map[string]any
}

var (
	_ toolscache.TransformingStore      = &store{}
	_ toolscache.ReflectorBookmarkStore = &store{}
)

// Transformer makes the Reflector transform the objects of a streamed list as they come. It is
// called before each such list.
func (s *store) Transformer() toolscache.TransformFunc {
	if s.transform == nil && s.pool == nil {
		return nil
	}
	s.streamed = map[string]any{}
	return func(object any) (result any, err error) {
		err = deepcall.Run(func() (err error) {
			result, err = s.asStreamed(object)
			return err
		})
		return result, err
	}
}

// asStreamed returns the object to store for one that a list streams.
func (s *store) asStreamed(object any) (any, error) {
	object, err := s.transformed(object)
	if err != nil {
		return nil, err
	}
	object = s.shared(object)
	if key, err := toolscache.MetaNamespaceKeyFunc(object); err == nil && isPointer(object) {
		s.streamed[key] = object
	}
	return object, nil
}

// transformed returns the object to store. Each object is transformed once.
func (s *store) transformed(object any) (any, error) {
	if s.transform == nil {
		return object, nil
	}
	if s.streamed != nil && isPointer(object) {
		if key, err := toolscache.MetaNamespaceKeyFunc(object); err == nil && s.streamed[key] == object {
			return object, nil
		}
	}
	result, err := s.transform(object)
	return result, errors.WithStack(err)
}

// isPointer reports whether an object can be compared with those in streamed.
func isPointer(object any) bool {
	return object != nil && reflect.TypeOf(object).Kind() == reflect.Pointer
}

// shared returns the equal object of another informer, or else object.
func (s *store) shared(object any) any {
	if s.pool == nil {
		return object
	}
	return s.pool.Find(object)
}

// hold returns the equal object of another informer, or else object, for the store. Each object of
// the store is held once.
func (s *store) hold(object any) any {
	if s.pool == nil {
		return object
	}
	return s.pool.Hold(object)
}

// release ends the hold of an object that is in the store no more.
func (s *store) release(object any) {
	if s.pool != nil {
		s.pool.Release(object)
	}
}

// releaseAll releases the objects of an informer that has ended.
func (s *store) releaseAll() {
	if s.pool != nil {
		for _, object := range s.indexer.List() {
			s.pool.Release(object)
		}
	}
}

// Add records an object that the watch reports as new.
func (s *store) Add(object any) error { return s.Update(object) }

// Update records an object.
func (s *store) Update(object any) error {
	return deepcall.Run(func() error { return s.set(object) })
}

func (s *store) set(object any) error {
	changed := version(object)
	object, err := s.transformed(object)
	if err != nil {
		return err
	}
	object = s.hold(object)
	s.mu.Lock()
	defer s.mu.Unlock()
	old, exists, err := s.indexer.Get(object)
	if err != nil || s.isPastLocked(changed) {
		s.release(object)
		return errors.WithStack(err)
	}
	if exists {
		defer s.release(old)
		err = s.indexer.Update(object)
	} else {
		s.objects.Add(1)
		err = s.indexer.Add(object)
	}
	s.notifySetLocked(old, object, exists)
	return errors.WithStack(err)
}

// Delete removes an object. The handlers receive the object that the watch reported, whose
// resourceVersion is that of the deletion. An object that the store does not have is ignored.
func (s *store) Delete(object any) error {
	return deepcall.Run(func() error { return s.remove(object) })
}

func (s *store) remove(object any) error {
	changed := version(object)
	object, err := s.transformed(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, exists, err := s.indexer.Get(object)
	if err != nil || s.isPastLocked(changed) || !exists {
		return errors.WithStack(err)
	}
	err = s.indexer.Delete(object)
	s.objects.Add(-1)
	s.release(old)
	s.notifyLocked(notification{kind: deleted, object: object})
	return errors.WithStack(err)
}

// Replace makes the store have exactly these objects, which are the result of a list.
func (s *store) Replace(objects []any, version string) error {
	return deepcall.Run(func() error { return s.replace(objects, version) })
}

func (s *store) replace(objects []any, version string) error {
	defer func() { s.streamed = nil }()
	keys, failed := make(map[string]any, len(objects)), true // stays true on a panic
	defer func() {
		if failed {
			for _, object := range keys {
				s.release(object)
			}
		}
	}()
	for n, object := range objects {
		object, err := s.transformed(object)
		if err != nil {
			return err
		}
		key, err := toolscache.MetaNamespaceKeyFunc(object)
		if err != nil {
			return errors.WithStack(err)
		}
		if earlier, twice := keys[key]; twice {
			s.release(earlier)
		}
		objects[n] = s.hold(object)
		keys[key] = objects[n]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isPastLocked(version) {
		return nil // of an API server that is behind; its watch goes on from there
	}
	before := make(map[string]any, s.objects.Load())
	for _, old := range s.indexer.List() {
		if key, err := toolscache.MetaNamespaceKeyFunc(old); err == nil { // as for all objects in the store
			before[key] = old
		}
	}
	// The indexer has the new objects even if an index function panics.
	failed = false
	s.objects.Store(int64(len(keys)))
	defer func() {
		for _, old := range before {
			s.release(old)
		}
	}()
	if err := s.indexer.Replace(objects, version); err != nil { // not for keys that have been found above
		return errors.WithStack(err)
	}
	for key, old := range before {
		if _, exists := keys[key]; !exists {
			s.notifyLocked(notification{kind: deleted, object: toolscache.DeletedFinalStateUnknown{Key: key, Obj: old}})
		}
	}
	for _, object := range objects {
		key, _ := toolscache.MetaNamespaceKeyFunc(object) // has succeeded above
		latest, first := keys[key]
		if !first { // the list names the object more than once
			continue
		}
		delete(keys, key)
		old, existed := before[key]
		s.notifySetLocked(old, latest, existed)
	}
	if s.synced.Open() {
		for _, l := range s.listeners {
			l.informerSynced()
		}
	}
	return nil
}

// Resync notifies the handlers that are due for a resync of each object.
func (s *store) Resync() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, object := range s.indexer.List() {
		s.notifySetLocked(object, object, true)
	}
	return nil
}

// Bookmark records a resourceVersion that the watch has reached.
func (s *store) Bookmark(version string) error {
	s.mu.Lock()
	_ = s.isPastLocked(version) // what comes after a later one is no past
	s.mu.Unlock()
	s.indexer.Bookmark(version)
	return nil
}

// notifySetLocked notifies the handlers that an object is new, or has changed. If its
// resourceVersion has not changed, only the handlers that are due for a resync are notified. The
// caller holds mu.
func (s *store) notifySetLocked(old, object any, existed bool) {
	s.mutations.AddObject(object)
	if !existed {
		s.notifyLocked(notification{kind: added, object: object, initial: !s.HasSynced()})
		return
	}
	change := notification{kind: updated, old: old, object: object}
	if version(old) != "" && version(old) == version(object) {
		change.kind = resynced
	}
	s.notifyLocked(change)
}

// notifyLocked puts a notification into the queues of the handlers. The caller holds mu.
func (s *store) notifyLocked(n notification) {
	for _, l := range s.listeners {
		if n.kind != resynced || l.resyncing {
			l.add(n)
		}
	}
}

// version returns the resourceVersion of an object, or nothing if it has none.
func version(object any) string {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return ""
	}
	return accessor.GetResourceVersion()
}
