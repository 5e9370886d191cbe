package contract

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// readYourWrites tests that reads of the connection's client include what it wrote just before.
func readYourWrites(t *testing.T, w World) {
	g := NewWithT(t)
	ctx := t.Context()
	connect(t, w, "red")
	c, err := w.Cache().GetClient(ctx, key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	inside, own := client.InNamespace(w.Namespace()), client.MatchingLabels{"own": "yes"}
	for i := range 30 {
		object := configMap(w, fmt.Sprint("own-", i))
		object.Labels = own
		name := client.ObjectKeyFromObject(object)
		found, list := &corev1.ConfigMap{}, &corev1.ConfigMapList{}
		g.Expect(c.Create(ctx, object)).To(Succeed())
		g.Expect(c.Get(ctx, name, found)).To(Succeed())
		g.Expect(c.List(ctx, list, inside, own)).To(Succeed())
		g.Expect(list.Items).To(HaveLen(1))

		object.Data = map[string]string{"key": "updated"}
		g.Expect(c.Update(ctx, object)).To(Succeed())
		g.Expect(c.Get(ctx, name, found)).To(Succeed())
		g.Expect(found.Data).To(Equal(object.Data))
		before := object.DeepCopy()
		object.Data = map[string]string{"key": "patched"}
		g.Expect(c.Patch(ctx, object, client.MergeFrom(before))).To(Succeed())
		g.Expect(c.List(ctx, list, inside, own)).To(Succeed())
		g.Expect(list.Items).To(HaveExactElements(HaveField("Data", object.Data)))

		if i%2 == 0 {
			g.Expect(c.Delete(ctx, object)).To(Succeed())
		} else {
			g.Expect(c.DeleteAllOf(ctx, object, inside, own)).To(Succeed())
		}
		g.Expect(c.Get(ctx, name, found)).To(Satisfy(apierrors.IsNotFound))
		g.Expect(c.List(ctx, list, inside, own)).To(Succeed())
		g.Expect(list.Items).To(BeEmpty())
	}
}
