package scopedcache_test

import (
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

func unstructuredConfigMap() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	return object
}

// TestMutationsStayLocal checks that identities with one pool share what they see, in each
// representation; that a reader that changes what it read changes nothing for another identity,
// even if it asks for the object without a copy; and that a change, and the end of a cache, leave
// nothing in the pool.
func TestMutationsStayLocal(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns := createNamespace(t)
	created := configMap(ns, "shared")
	created.Data = map[string]string{"key": "value"}
	created.Labels = map[string]string{"from": "server"}
	create(t, created)
	pool := scopedcache.NewObjectPool()
	var caches []*runningCache
	for range 3 {
		u := newUser(t)
		u.grant(t, ns, "configmaps", "list", "watch")
		caches = append(caches, u.start(t, scopedcache.Options{PerNamespace: true, ObjectPool: pool}, cache.Options{}))
	}
	key := client.ObjectKeyFromObject(created)
	kinds := map[string]func() client.Object{
		"typed":        func() client.Object { return &corev1.ConfigMap{} },
		"unstructured": func() client.Object { return unstructuredConfigMap() },
		"metadata":     func() client.Object { return metadataConfigMap() },
	}
	for name, newObject := range kinds {
		for _, c := range caches {
			object := newObject()
			g.Expect(c.Get(ctx, key, object, &client.GetOptions{UnsafeDisableDeepCopy: new(true)})).To(Succeed())
			g.Expect(object.GetLabels()).To(Equal(map[string]string{"from": "server"}), name)
			object.GetLabels()["from"] = "reader" // for typed objects and metadata the map of the object
			if typed, ok := object.(*corev1.ConfigMap); ok {
				typed.Data["key"] = "changed"
			}
			if untyped, ok := object.(*unstructured.Unstructured); ok {
				untyped.Object["data"].(map[string]any)["key"] = "changed"
			}
		}
	}
	var typed corev1.ConfigMap
	g.Expect(caches[0].Get(ctx, key, &typed)).To(Succeed())
	g.Expect(typed.Data).To(HaveKeyWithValue("key", "value"))
	list := &corev1.ConfigMapList{}
	unsafe := &client.ListOptions{Namespace: ns, UnsafeDisableDeepCopy: new(true)}
	g.Expect(caches[1].List(ctx, list, unsafe)).To(Succeed())
	list.Items[0].Data["key"] = "changed"
	g.Expect(caches[2].List(ctx, list, client.InNamespace(ns))).To(Succeed())
	g.Expect(list.Items).To(ConsistOf(HaveField("Data", HaveKeyWithValue("key", "value"))))

	g.Expect(pool.Len()).To(Equal(len(kinds)), "three identities have each representation once")
	created.Data["key"] = "new"
	g.Expect(admin.Update(ctx, created)).To(Succeed())
	for _, c := range caches {
		g.Eventually(func() map[string]string {
			g.Expect(c.Get(ctx, key, &typed)).To(Succeed())
			return typed.Data
		}).WithTimeout(patience).Should(HaveKeyWithValue("key", "new"))
	}
	g.Eventually(pool.Len).WithTimeout(patience).Should(Equal(len(kinds)), "earlier versions are gone")
	for n, c := range slices.Backward(caches) {
		c.stop()
		if n > 0 {
			g.Expect(pool.Len()).To(Equal(len(kinds)), fmt.Sprint(n, " caches are left"))
		}
	}
	g.Expect(pool.Len()).To(BeZero())
}
