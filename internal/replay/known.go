package replay

import (
	"maps"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Known is what is remembered of objects that a handler was told of.
type Known map[client.ObjectKey]Object

// Object is what is remembered of an object.
type Object struct {
	gvk             schema.GroupVersionKind // empty for typed objects, as informers have it
	uid             types.UID
	resourceVersion string
	labels          map[string]string
	owners          []metav1.OwnerReference
}

// Remember returns what is remembered of an object, whose labels and owners are shared.
func Remember(shown client.Object) Object {
	return Object{gvk: shown.GetObjectKind().GroupVersionKind(), uid: shown.GetUID(),
		resourceVersion: shown.GetResourceVersion(),
		labels:          shown.GetLabels(), owners: shown.GetOwnerReferences()}
}

// lastKnown is how client-go tells of a deletion that nobody saw: with an object that has nothing
// but what is remembered, and shares nothing.
func (o Object) lastKnown(example client.Object, key client.ObjectKey) toolscache.DeletedFinalStateUnknown {
	made := reflect.New(reflect.TypeOf(example).Elem()).Interface().(client.Object)
	made.GetObjectKind().SetGroupVersionKind(o.gvk)
	made.SetNamespace(key.Namespace)
	made.SetName(key.Name)
	made.SetUID(o.uid)
	made.SetResourceVersion(o.resourceVersion)
	made.SetLabels(maps.Clone(o.labels))
	owners := make([]metav1.OwnerReference, len(o.owners))
	for i := range o.owners {
		o.owners[i].DeepCopyInto(&owners[i])
	}
	if len(owners) > 0 {
		made.SetOwnerReferences(owners)
	}
	return toolscache.DeletedFinalStateUnknown{Key: keyString(key), Obj: made}
}

// keyString is the key of an object in an informer's store.
func keyString(key client.ObjectKey) string {
	if key.Namespace == "" {
		return key.Name
	}
	return key.String()
}
