package watches

import (
	"maps"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What is deleted while an extension is not connected no informer tells of: the next one does not know that it was there.
// So a watch knows what its handler was told of, and when a connection ends it remembers that until the next one has shown
// what is left of it, and tells of the rest. It remembers nothing but what handlers find the owner by, for the next
// identity may be another: no content, and no annotations, in which kubectl keeps content too.

// remembered is an object that the handler was told of by an earlier connection.
type remembered struct {
	gvk             schema.GroupVersionKind // empty for typed objects, as informers have it
	uid             types.UID
	resourceVersion string
	labels          map[string]string
	owners          []metav1.OwnerReference
}

func remember(shown client.Object) remembered {
	return remembered{gvk: shown.GetObjectKind().GroupVersionKind(), uid: shown.GetUID(), resourceVersion: shown.GetResourceVersion(),
		labels: shown.GetLabels(), owners: shown.GetOwnerReferences()}
}

// object makes an object of the kind of the example that has nothing but what is remembered. It shares nothing.
func (r remembered) object(example client.Object, key client.ObjectKey) client.Object {
	made := reflect.New(reflect.TypeOf(example).Elem()).Interface().(client.Object)
	made.GetObjectKind().SetGroupVersionKind(r.gvk)
	made.SetNamespace(key.Namespace)
	made.SetName(key.Name)
	made.SetUID(r.uid)
	made.SetResourceVersion(r.resourceVersion)
	made.SetLabels(maps.Clone(r.labels))
	owners := make([]metav1.OwnerReference, len(r.owners))
	for i := range r.owners {
		r.owners[i].DeepCopyInto(&owners[i])
	}
	if len(owners) > 0 {
		made.SetOwnerReferences(owners)
	}
	return made
}

// forgetConnectionLocked turns what the handler was told of by a connection that has ended into what is missing.
func (w *watch) forgetConnectionLocked() {
	if w.told == nil {
		return
	}
	if w.missing == nil {
		w.missing = make(map[client.ObjectKey]remembered, len(w.told))
	}
	for key, shown := range w.told {
		w.missing[key] = remember(shown)
	}
	w.told = nil
}

// toldLocked notes that the handler is being told of an object by the current connection. If it was told of another one of
// the same name by an earlier connection, that one is returned, for it is gone.
func (w *watch) toldLocked(shown client.Object) (successorOf client.Object) {
	key := client.ObjectKeyFromObject(shown)
	if w.told == nil {
		w.told = map[client.ObjectKey]client.Object{}
	}
	w.told[key] = shown
	if before, ok := w.missing[key]; ok {
		delete(w.missing, key)
		if before.uid != shown.GetUID() {
			return before.object(w.object, key)
		}
	}
	return nil
}

// tellMissing waits until the handler was told of all that is there, and then tells it of what is not there any more.
func (w *watch) tellMissing(conn Connection, informer Informer, handle toolscache.ResourceEventHandlerRegistration, handler toolscache.ResourceEventHandler) {
	select {
	case <-handle.HasSyncedChecker().Done():
	case <-conn.Life().Done():
		return
	case <-w.done:
		return
	}
	for _, key := range w.missingNow() {
		var gone client.Object
		w.call(conn, func() bool {
			before, ok := w.missing[key]
			if !ok || w.informer != informer || informer.Has(keyString(key)) {
				return false // it has come meanwhile, or another connection is about it
			}
			delete(w.missing, key)
			gone = before.object(w.object, key)
			return true
		}, func() { handler.OnDelete(lastKnown(gone)) })
	}
}

// missingNow are the names of what is missing.
func (w *watch) missingNow() (keys []client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.missing {
		keys = append(keys, key)
	}
	return keys
}

// lastKnown is how client-go tells of a deletion that nobody saw.
func lastKnown(gone client.Object) toolscache.DeletedFinalStateUnknown {
	return toolscache.DeletedFinalStateUnknown{Key: keyString(client.ObjectKeyFromObject(gone)), Obj: gone}
}
