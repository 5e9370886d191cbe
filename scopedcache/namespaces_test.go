package scopedcache

import (
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A scope whose field selector requires a namespace has nothing in other namespaces.
func TestListInAnotherNamespaceThanSelected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := newAPIServer(t).newCache(t)
		handle, err := c.Hold(t.Context(), configMap(),
			Scope{FieldSelector: fields.OneTermEqualSelector("metadata.namespace", "n")}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		defer handle.Release()
		for namespace, want := range map[string]int{"": 1, "n": 1, "other": 0} {
			found := &unstructured.UnstructuredList{}
			found.SetGroupVersionKind(configMaps.GroupVersion().WithKind("ConfigMapList"))
			g.Expect(handle.List(t.Context(), found, client.InNamespace(namespace))).To(Succeed(), namespace)
			g.Expect(found.Items).To(HaveLen(want), namespace)
		}
	})
}
