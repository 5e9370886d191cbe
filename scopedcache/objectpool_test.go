package scopedcache

import (
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Objects of a kind that is read without copies are not shared, because a reader that changes one
// must not reach other caches. An index function gets a copy of a shared object.
func TestWhichKindsAreShared(t *testing.T) {
	for name, tc := range map[string]struct {
		opts   cache.Options
		shared bool
	}{
		"with copies":    {cache.Options{}, true},
		"without copies": {cache.Options{DefaultUnsafeDisableDeepCopy: ptr.To(true)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				pool := NewObjectPool()
				c := newAPIServer(t).newCacheOf(t, tc.opts, func(o *Options) { o.ObjectPool = pool })
				g.Expect(c.IndexField(t.Context(), configMap(), "changed", func(object client.Object) []string {
					object.SetLabels(map[string]string{"changed": "by an index function"})
					return nil
				})).To(Succeed())
				object := configMap()
				g.Expect(c.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "a"}, object)).To(Succeed())
				if tc.shared {
					g.Expect(pool.Len()).To(Equal(1))
					g.Expect(object.GetLabels()).To(BeEmpty())
				} else {
					g.Expect(pool.Len()).To(BeZero())
				}
			})
		})
	}
}
