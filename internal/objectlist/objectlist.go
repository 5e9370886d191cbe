package objectlist

import (
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// New returns an empty list of objects of the object's kind, in its representation.
func New(object client.Object, scheme *runtime.Scheme) (client.ObjectList, error) {
	gvk, err := apiutil.GVKForObject(object, scheme)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	gvk.Kind += "List"
	switch object.(type) {
	case runtime.Unstructured:
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
		return nil, errors.Errorf("%T is not a client.ObjectList", list)
	}
	return typed, nil
}
