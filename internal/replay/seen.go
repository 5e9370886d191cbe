package replay

import (
	"maps"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/versions"
)

// Seen is the record of the objects that a handler received.
type Seen map[client.ObjectKey]Object

// Object is the record of one object.
type Object struct {
	gvk             schema.GroupVersionKind // empty for typed objects, as informers have it
	uid             types.UID
	resourceVersion string
	labels          map[string]string
	owners          []metav1.OwnerReference
	current         bool // the handler need not receive this version again
}

// Latest returns the latest versions of the objects.
func (s Seen) Latest() versions.ByNamespace {
	latest := versions.ByNamespace{}
	for key, object := range s {
		latest.Note(key.Namespace, object.resourceVersion)
	}
	return latest
}

// Outdate makes the next feed add the objects, even if the handler has received these versions.
func (s Seen) Outdate() {
	for key, object := range s {
		object.current = false
		s[key] = object
	}
}

// Remember returns the record of an object. The record shares the object's labels and owners.
func Remember(object client.Object) Object {
	return Object{
		gvk:             object.GetObjectKind().GroupVersionKind(),
		uid:             object.GetUID(),
		resourceVersion: object.GetResourceVersion(),
		labels:          object.GetLabels(),
		owners:          object.GetOwnerReferences(),
	}
}

// lastKnown returns a deletion in the form that client-go uses for a deletion that no watch
// observed. Its object has the recorded fields only, and shares nothing.
func (o Object) lastKnown(example client.Object, key client.ObjectKey) toolscache.DeletedFinalStateUnknown {
	tombstone := reflect.New(reflect.TypeOf(example).Elem()).Interface().(client.Object)
	tombstone.GetObjectKind().SetGroupVersionKind(o.gvk)
	tombstone.SetNamespace(key.Namespace)
	tombstone.SetName(key.Name)
	tombstone.SetUID(o.uid)
	tombstone.SetResourceVersion(o.resourceVersion)
	tombstone.SetLabels(maps.Clone(o.labels))
	owners := make([]metav1.OwnerReference, len(o.owners))
	for i := range o.owners {
		o.owners[i].DeepCopyInto(&owners[i])
	}
	if len(owners) > 0 {
		tombstone.SetOwnerReferences(owners)
	}
	return toolscache.DeletedFinalStateUnknown{Key: toolscache.ObjectName(key).String(), Obj: tombstone}
}
