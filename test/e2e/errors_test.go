package e2e

import (
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func isForbidden(err error) bool { return apierrors.IsForbidden(err) }

func isNoMatch(err error) bool {
	return meta.IsNoMatchError(errors.Cause(err)) || meta.IsNoMatchError(err)
}

// gadget returns an object of a kind that no API server serves.
func gadget() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.test", Version: "v1", Kind: "Gadget"})
	return object
}
