package scopedcache_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/testutil"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// What was got and set up once lasts: the informer, handlers, indexes, transforms. Losing the right
// and winning it back makes none of it new.
func TestInformersOutliveRights(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := namespace(t), newUser(t)
	create(t, coloured(ns, "a", "red"), coloured(ns, "b", "green"))
	right := u.grant(t, "", "configmaps", "list", "watch")
	resync := time.Second
	c := u.start(t, scopedcache.Options{AccessReviewInterval: often},
		cache.Options{SyncPeriod: &resync, DefaultTransform: func(object any) (any, error) {
			if found, ok := object.(*corev1.ConfigMap); ok {
				found.Annotations = map[string]string{"seen": "yes"}
			}
			return object, nil
		}})
	byColour := func(object client.Object) []string { return []string{object.GetLabels()["colour"]} }
	g.Expect(c.IndexField(ctx, &corev1.ConfigMap{}, "colour", byColour)).To(Succeed())
	g.Expect(c.IndexField(ctx, &corev1.ConfigMap{}, "colour", byColour)).NotTo(Succeed(), "there is one of that name")
	informer, err := c.GetInformer(ctx, &corev1.ConfigMap{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(informer.HasSynced()).To(BeTrue())
	told := &testutil.Recorder{Namespace: ns}
	handle, err := informer.AddEventHandler(told)
	g.Expect(err).NotTo(HaveOccurred())
	resynced := &testutil.Recorder{Namespace: ns}
	_, err = informer.AddEventHandlerWithResyncPeriod(resynced, resync)
	g.Expect(err).NotTo(HaveOccurred())
	never := time.Duration(0)
	unsynced := &testutil.Recorder{Namespace: ns}
	_, err = informer.AddEventHandlerWithOptions(unsynced, toolscache.HandlerOptions{ResyncPeriod: &never})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(informer.AddIndexers(toolscache.Indexers{"first": func(any) ([]string, error) {
		return []string{"x"}, nil
	}})).To(Succeed())
	// An index that comes when the informer runs already.
	g.Expect(c.IndexField(ctx, &corev1.ConfigMap{}, "first", func(object client.Object) []string {
		return []string{object.GetName()[:1]}
	})).To(Succeed())

	check := func() {
		t.Helper()
		for field, want := range map[string]string{"colour": "red", "first": "a"} {
			list := &corev1.ConfigMapList{}
			g.Expect(c.List(ctx, list, client.InNamespace(ns), client.MatchingFields{field: want})).To(Succeed())
			g.Expect(namesOf(list)).To(Equal([]string{"a"}), field)
			g.Expect(list.Items[0].Annotations).To(HaveKeyWithValue("seen", "yes"))
			g.Expect(list.Items[0].Labels).To(HaveKeyWithValue("colour", "red"), "not what another reader did to its own")
			list.Items[0].Labels["colour"] = "changed" // which is the reader's own
		}
		toldOf := func() []string {
			var mine []string
			for _, event := range told.Events() {
				if event == "add a" || event == "add b" {
					mine = append(mine, event)
				}
			}
			return mine
		}
		g.Eventually(toldOf).WithTimeout(patience).Should(ConsistOf("add a", "add b"))
		g.Eventually(handle.HasSynced).WithTimeout(patience).Should(BeTrue())
	}
	check()
	g.Eventually(resynced.Events).WithTimeout(patience).Should(ContainElement("update a"), "a resync")

	for range 2 {
		right.revoke(t)
		g.Eventually(func() bool { return c.refused(ctx, "") && c.refused(ctx, ns) }).WithTimeout(patience).Should(BeTrue())
		g.Expect(informer.HasSynced()).To(BeTrue(), "it is settled")
		g.Expect(informer.IsStopped()).To(BeFalse())
		same, err := c.GetInformer(ctx, &corev1.ConfigMap{})
		g.Expect(err).NotTo(HaveOccurred(), "who comes now gets one too")
		late := &testutil.Recorder{Namespace: ns}
		lateHandle, err := same.AddEventHandler(late)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(lateHandle.HasSynced()).To(BeTrue(), "there is nothing to be told of")
		told.Reset()
		resynced.Reset()
		right.again(t)
		g.Eventually(func() bool { return !c.refused(ctx, "") && !c.refused(ctx, ns) }).WithTimeout(patience).
			Should(BeTrue())
		check()
		g.Eventually(late.Events).WithTimeout(patience).Should(ContainElements("add a", "add b"))
		g.Eventually(resynced.Events).WithTimeout(patience).Should(ContainElement("update a"), "a resync")
		g.Expect(same.RemoveEventHandler(lateHandle)).To(Succeed())
		g.Expect(same.RemoveEventHandler(lateHandle)).To(Succeed(), "again, which changes nothing")
		late.Reset()
		create(t, configMap(ns, "while-"+time.Now().Format("150405.000000")))
		g.Eventually(told.Events).WithTimeout(patience).Should(ContainElement(HavePrefix("add while-")))
		g.Expect(late.Events()).To(BeEmpty())
	}

	g.Expect(unsynced.Events()).NotTo(ContainElement(HavePrefix("update")), "who wants no resync gets none")

	// What is removed has stopped for ever; the next one is another.
	g.Expect(c.RemoveInformer(ctx, &corev1.ConfigMap{})).To(Succeed())
	g.Expect(informer.IsStopped()).To(BeTrue())
	anew, err := c.GetInformer(ctx, &corev1.ConfigMap{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(anew.IsStopped()).To(BeFalse())
	fresh := &testutil.Recorder{Namespace: ns}
	_, err = anew.AddEventHandler(fresh)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(fresh.Events).WithTimeout(patience).Should(ContainElements("add a", "add b"))
}

// Namespaces that the cache's options name live with RBAC as well: each on its own, and all of them
// together only if every one may be read.
func TestConfiguredNamespaces(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	one, two, other, u := namespace(t), namespace(t), namespace(t), newUser(t)
	create(t, configMap(one, "a"), configMap(two, "b"), configMap(other, "c"))
	u.grant(t, one, "configmaps", "list", "watch")
	c := u.start(t, scopedcache.Options{AccessReviewInterval: often},
		cache.Options{DefaultNamespaces: map[string]cache.Config{one: {}, two: {}}})
	informer, err := c.GetInformer(ctx, &corev1.ConfigMap{})
	g.Expect(err).NotTo(HaveOccurred())
	told := &testutil.Recorder{}
	handle, err := informer.AddEventHandler(told)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(told.Events).WithTimeout(patience).Should(Equal([]string{"add a"}))
	g.Expect(c.names(ctx, one)).To(Equal([]string{"a"}))
	g.Expect(c.refused(ctx, two)).To(BeTrue())
	g.Expect(c.refused(ctx, "")).To(BeTrue(), "never a part of the truth")
	_, err = c.names(ctx, other)
	g.Expect(err).To(MatchError(ContainSubstring("unknown namespace")))
	g.Expect(apierrors.IsForbidden(err)).To(BeFalse())

	right := u.grant(t, two, "configmaps", "list", "watch")
	g.Eventually(func() ([]string, error) { return c.names(ctx, "") }).WithTimeout(patience).Should(ConsistOf("a", "b"))
	limited := &corev1.ConfigMapList{}
	g.Expect(c.List(ctx, limited, client.Limit(1))).To(Succeed())
	g.Expect(limited.Items).To(HaveLen(1), "of both namespaces")
	g.Eventually(told.Events).WithTimeout(patience).Should(Equal([]string{"add a", "add b"}))
	g.Eventually(handle.HasSynced).WithTimeout(patience).Should(BeTrue())
	right.revoke(t)
	g.Eventually(func() bool { return c.refused(ctx, "") }).WithTimeout(patience).Should(BeTrue())
	g.Expect(c.names(ctx, one)).To(Equal([]string{"a"}))
	g.Expect(informer.RemoveEventHandler(handle)).To(Succeed())
}
