package watches

import (
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What is deleted while an extension is not connected no informer tells of: the next one does not know that it was there.
// So a watch remembers the metadata of what its handler was told of when a connection ends, until the next one has shown
// what is left of it, and tells of the rest. Nothing but what handlers find the owner by is kept, for the next identity
// may be another: no content, and no annotations, in which kubectl keeps content too.

// rememberLocked takes note of what the informer has shown, if its connection has ended.
func (w *watch) rememberLocked() {
	if w.informer == nil || w.handle == nil {
		return
	}
	for _, object := range w.informer.Objects() {
		shown, ok := object.(client.Object)
		if !ok {
			continue
		}
		if w.missing == nil {
			w.missing = map[client.ObjectKey]client.Object{}
		}
		w.missing[client.ObjectKeyFromObject(shown)] = w.metadataOf(shown)
	}
}

// metadataOf makes an object of the watch's kind that has the name, UID, labels and owners of another.
func (w *watch) metadataOf(shown client.Object) client.Object {
	made := reflect.New(reflect.TypeOf(w.object).Elem()).Interface().(client.Object)
	made.GetObjectKind().SetGroupVersionKind(shown.GetObjectKind().GroupVersionKind()) // typed objects may have none
	made.SetNamespace(shown.GetNamespace())
	made.SetName(shown.GetName())
	made.SetUID(shown.GetUID())
	made.SetResourceVersion(shown.GetResourceVersion())
	made.SetLabels(shown.GetLabels())
	made.SetOwnerReferences(append([]metav1.OwnerReference(nil), shown.GetOwnerReferences()...))
	return made
}

// found notes that an object is there after all.
func (w *watch) found(object any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if shown, ok := object.(client.Object); ok && len(w.missing) > 0 {
		delete(w.missing, client.ObjectKeyFromObject(shown))
	}
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
	for {
		gone := w.nextMissing(conn, informer)
		if gone == nil {
			return
		}
		w.call(conn, func() {
			handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: keyString(client.ObjectKeyFromObject(gone)), Obj: gone})
		})
	}
}

// nextMissing takes one of what is missing, nil if there is none or another connection is about it.
func (w *watch) nextMissing(conn Connection, informer Informer) client.Object {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.informer != informer || conn.Err() != nil {
		return nil
	}
	for key, gone := range w.missing {
		delete(w.missing, key)
		return gone
	}
	w.missing = nil
	return nil
}
