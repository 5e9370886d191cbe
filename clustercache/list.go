package clustercache

import (
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// newList returns an empty list of objects in the representation of object.
func newList(object client.Object, gvk schema.GroupVersionKind, scheme *runtime.Scheme) (client.ObjectList, error) {
	switch object.(type) {
	case *unstructured.Unstructured:
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)
		return list, nil
	case *metav1.PartialObjectMetadata:
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk)
		return list, nil
	}
	list, err := scheme.New(gvk)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	typed, ok := list.(client.ObjectList)
	if !ok {
		return nil, errors.Errorf("%T is no list of objects", list)
	}
	return typed, nil
}

// requestsFor returns a request for every object of a list.
func requestsFor(list client.ObjectList) (requests []ctrl.Request) {
	_ = meta.EachListItem(list, func(item runtime.Object) error { // fails only as the function does
		if object, err := meta.Accessor(item); err == nil {
			requests = append(requests, ctrl.Request{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}})
		}
		return nil
	})
	return requests
}
