package replay

import (
	"iter"
	"maps"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fewObjects is how many objects are found without a map. Most handlers of an extension receive
// few, and a map takes half a kilobyte from the first one on.
const fewObjects = 8

// received has the objects that a handler received from one informer. The zero value has none.
type received struct {
	few  []client.Object                    // nil if there are many
	many map[client.ObjectKey]client.Object // nil if there are few
}

// put adds an object, or replaces the one of that name.
func (r *received) put(object client.Object) {
	key := client.ObjectKeyFromObject(object)
	if r.many != nil {
		r.many[key] = object
		return
	}
	if at := r.indexOf(key); at >= 0 {
		r.few[at] = object
		return
	}
	r.few = append(r.few, object)
	if len(r.few) <= fewObjects {
		return
	}
	r.many = make(map[client.ObjectKey]client.Object, len(r.few))
	for _, object := range r.few {
		r.many[client.ObjectKeyFromObject(object)] = object
	}
	r.few = nil
}

// remove removes the object of that name, if there is one.
func (r *received) remove(key client.ObjectKey) {
	if r.many != nil {
		delete(r.many, key)
		return
	}
	if at := r.indexOf(key); at >= 0 {
		r.few = slices.Delete(r.few, at, at+1)
	}
}

func (r *received) indexOf(key client.ObjectKey) int {
	return slices.IndexFunc(r.few, func(object client.Object) bool {
		return object.GetName() == key.Name && object.GetNamespace() == key.Namespace
	})
}

// len returns the number of objects.
func (r *received) len() int { return len(r.few) + len(r.many) }

// all returns the objects, in no particular order.
func (r *received) all() iter.Seq[client.Object] {
	if r.many != nil {
		return maps.Values(r.many)
	}
	return slices.Values(r.few)
}
