package scopedcache

import (
	"fmt"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A second index of the same name is refused, even while no informer runs.
func TestIndexesOfTheSameName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		a.deny(true)
		c := a.newCache(t)
		none := func(any) ([]string, error) { return nil, nil }
		g.Expect(c.IndexField(t.Context(), configMap(), "f", func(client.Object) []string { return nil })).To(Succeed())
		informer, err := c.GetInformer(t.Context(), configMap())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(informer.AddIndexers(toolscache.Indexers{"mine": none})).To(Succeed())
		for _, name := range []string{"mine", "field:f", toolscache.NamespaceIndex} {
			g.Expect(informer.AddIndexers(toolscache.Indexers{name: none})).NotTo(Succeed(), name)
		}
		a.deny(false)
		g.Eventually(func() error { return list(t.Context(), c, "") }).WithTimeout(patience).Should(Succeed())
	})
}

// If one informer refuses an index, later informers do not get that index. Other indexes still
// work.
func TestIndexThatOneInformerRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := newAPIServer(t).newCache(t)
		g.Expect(list(t.Context(), c, "n")).To(Succeed())
		informer, err := c.GetInformer(t.Context(), configMap())
		g.Expect(err).NotTo(HaveOccurred())
		none := func(client.Object) []string { return nil }
		g.Expect(informer.AddIndexers(toolscache.Indexers{"field:f": func(any) ([]string, error) { return nil, nil }})).
			To(Succeed())
		for range 20 { // in either order of the two informers
			g.Expect(c.IndexField(t.Context(), configMap(), "f", none)).NotTo(Succeed())
		}
		g.Expect(c.IndexField(t.Context(), configMap(), "a", none)).To(Succeed())
		indexed := &unstructured.UnstructuredList{}
		indexed.SetGroupVersionKind(configMaps.GroupVersion().WithKind("ConfigMapList"))
		g.Expect(c.List(t.Context(), indexed, client.InNamespace("n"), client.MatchingFields{"a": "x"})).To(Succeed())
	})
}

// Reads by several fields may come while indexes are added.
func TestReadsWhileIndexesAreAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := newAPIServer(t).newCache(t)
		index := func(field string) error {
			return c.IndexField(t.Context(), configMap(), field, func(client.Object) []string { return []string{"x"} })
		}
		g.Expect(index("a")).To(Succeed())
		g.Expect(index("b")).To(Succeed())
		g.Expect(list(t.Context(), c, "n")).To(Succeed())
		added := make(chan error, 100)
		go func() {
			defer close(added)
			for n := range 100 {
				if err := index(fmt.Sprintf("more%d", n)); err != nil {
					added <- err
				}
			}
		}()
		for open := true; open; {
			var err error
			select {
			case err, open = <-added:
				g.Expect(err).NotTo(HaveOccurred())
			default:
			}
			found := &unstructured.UnstructuredList{}
			found.SetGroupVersionKind(configMaps.GroupVersion().WithKind("ConfigMapList"))
			g.Expect(c.List(t.Context(), found, client.InNamespace("n"), client.MatchingFields{"a": "x", "b": "x"})).
				To(Succeed())
			g.Expect(found.Items).To(HaveLen(1))
		}
	})
}
