package e2e

import (
	"context"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/multicluster"
)

// engagements is multicluster-runtime's Aware: it keeps the contexts of each name.
type engagements struct {
	mu       sync.Mutex
	contexts map[string][]context.Context // guarded by mu
}

func (e *engagements) Engage(ctx context.Context, name string, _ cluster.Cluster) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.contexts[name] = append(e.contexts[name], ctx)
	return nil
}

// of returns how often the name was engaged, and how many of these contexts have not ended.
func (e *engagements) of(name string) func() [2]int {
	return func() [2]int {
		e.mu.Lock()
		defer e.mu.Unlock()
		live := 0
		for _, ctx := range e.contexts[name] {
			if ctx.Err() == nil {
				live++
			}
		}
		return [2]int{len(e.contexts[name]), live}
	}
}

// Extensions are clusters of multicluster-runtime: engaged while they are connected, with indexes
// that were added before or after, and each as its own identity.
func TestMulticlusterProvider(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	o := startOperator(t, clustercache.Options{})
	for _, name := range []string{"red", "blue"} {
		tenant(t, ns, name)
		o.waitConnected(t, name)
	}
	provider, err := multicluster.New[string, *engagements](o, multicluster.Options[string]{})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(context.Background())
	engaged := &engagements{contexts: map[string][]context.Context{}}
	var running sync.WaitGroup
	running.Go(func() {
		if err := provider.Start(ctx, engaged); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
	for _, name := range []string{"red", "blue"} {
		g.Eventually(engaged.of(name)).WithTimeout(patience).Should(Equal([2]int{1, 1}))
	}

	object := configMap(ns, "indexed")
	object.Data = map[string]string{"color": "red"}
	create(t, object)
	found := func(name string) func() (int, error) {
		return func() (int, error) {
			whole, err := provider.Get(t.Context(), name)
			if err != nil {
				return 0, err
			}
			list := &corev1.ConfigMapList{}
			err = whole.GetClient().List(t.Context(), list, client.InNamespace(ns), client.MatchingFields{"color": "red"})
			return len(list.Items), err
		}
	}
	_, err = found("red")()
	g.Expect(err).To(MatchError(ContainSubstring("color")), "there is no index yet")
	g.Expect(provider.IndexField(t.Context(), &corev1.ConfigMap{}, "color", func(object client.Object) []string {
		return []string{object.(*corev1.ConfigMap).Data["color"]}
	})).To(Succeed())
	for _, name := range []string{"red", "blue"} {
		g.Eventually(found(name)).WithTimeout(patience).Should(Equal(1))
	}

	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "red"))).To(Succeed())
	g.Eventually(engaged.of("red")).WithTimeout(patience).Should(Equal([2]int{1, 0}))
	_, err = found("red")()
	g.Expect(err).To(MatchError(multicluster.ErrNotFound))
	g.Expect(found("blue")()).To(Equal(1))
	create(t, serviceAccount(ns, "red"))
	g.Eventually(engaged.of("red")).WithTimeout(patience).Should(Equal([2]int{2, 1}))
	g.Eventually(found("red")).WithTimeout(patience).Should(Equal(1), "the next connection has the index, too")
	stop()
	running.Wait()
	g.Expect(engaged.of("red")()).To(Equal([2]int{2, 0}))
	g.Expect(engaged.of("blue")()).To(Equal([2]int{1, 0}))
}
