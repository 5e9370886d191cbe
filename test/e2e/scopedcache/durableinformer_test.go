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

	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// TestInformersOutlivePermissions checks that an informer and its handlers, indexes and transforms
// survive when the permission is revoked and granted again. The caller creates none of them again.
func TestInformersOutlivePermissions(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := createNamespace(t), newUser(t)
	create(t, colouredConfigMap(ns, "a", "red"), colouredConfigMap(ns, "b", "green"))
	grant := u.grant(t, "", "configmaps", "list", "watch")
	resync := time.Second
	c := u.start(t, scopedcache.Options{AccessReviewInterval: shortInterval},
		cache.Options{
			SyncPeriod: &resync,
			DefaultTransform: func(object any) (any, error) {
				if found, ok := object.(*corev1.ConfigMap); ok {
					found.Annotations = map[string]string{"seen": "yes"}
				}
				return object, nil
			},
		})
	byColour := func(object client.Object) []string { return []string{object.GetLabels()["colour"]} }
	g.Expect(c.IndexField(ctx, &corev1.ConfigMap{}, "colour", byColour)).To(Succeed())
	g.Expect(c.IndexField(ctx, &corev1.ConfigMap{}, "colour", byColour)).NotTo(Succeed(), "an index of this name exists")
	informer, err := c.GetInformer(ctx, &corev1.ConfigMap{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(informer.HasSynced()).To(BeTrue())
	recorder := &testutil.Recorder{Namespace: ns}
	registration, err := informer.AddEventHandler(recorder)
	g.Expect(err).NotTo(HaveOccurred())
	resynced := &testutil.Recorder{Namespace: ns}
	_, err = informer.AddEventHandlerWithResyncPeriod(resynced, resync)
	g.Expect(err).NotTo(HaveOccurred())
	noResync := time.Duration(0)
	unsynced := &testutil.Recorder{Namespace: ns}
	_, err = informer.AddEventHandlerWithOptions(unsynced, toolscache.HandlerOptions{ResyncPeriod: &noResync})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(informer.AddIndexers(toolscache.Indexers{"first": func(any) ([]string, error) {
		return []string{"x"}, nil
	}})).To(Succeed())
	// Add an index while the informer runs.
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
			g.Expect(list.Items[0].Labels).To(HaveKeyWithValue("colour", "red"),
				"a reader's change of its own copy must not be visible to others")
			list.Items[0].Labels["colour"] = "changed" // change the reader's own copy
		}
		recordedAdds := func() []string {
			var adds []string
			for _, event := range recorder.Events() {
				if event == "add a" || event == "add b" {
					adds = append(adds, event)
				}
			}
			return adds
		}
		g.Eventually(recordedAdds).WithTimeout(patience).Should(ConsistOf("add a", "add b"))
		g.Eventually(registration.HasSynced).WithTimeout(patience).Should(BeTrue())
	}
	check()
	g.Eventually(resynced.Events).WithTimeout(patience).Should(ContainElement("update a"), "a resync")

	for range 2 {
		grant.revoke(t)
		g.Eventually(func() bool { return c.isForbidden(ctx, "") && c.isForbidden(ctx, ns) }).WithTimeout(patience).
			Should(BeTrue())
		g.Expect(informer.HasSynced()).To(BeTrue(), "the state is known, so the informer has synced")
		g.Expect(informer.IsStopped()).To(BeFalse())
		same, err := c.GetInformer(ctx, &corev1.ConfigMap{})
		g.Expect(err).NotTo(HaveOccurred(), "GetInformer also succeeds while access is forbidden")
		late := &testutil.Recorder{Namespace: ns}
		lateRegistration, err := same.AddEventHandler(late)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(lateRegistration.HasSynced()).To(BeTrue(), "there are no objects to report")
		recorder.Reset()
		resynced.Reset()
		grant.restore(t)
		g.Eventually(func() bool { return !c.isForbidden(ctx, "") && !c.isForbidden(ctx, ns) }).WithTimeout(patience).
			Should(BeTrue())
		check()
		g.Eventually(late.Events).WithTimeout(patience).Should(ContainElements("add a", "add b"))
		g.Eventually(resynced.Events).WithTimeout(patience).Should(ContainElement("update a"), "a resync")
		g.Expect(same.RemoveEventHandler(lateRegistration)).To(Succeed())
		g.Expect(same.RemoveEventHandler(lateRegistration)).To(Succeed(), "a second removal has no effect")
		late.Reset()
		create(t, configMap(ns, "while-"+time.Now().Format("150405.000000")))
		g.Eventually(recorder.Events).WithTimeout(patience).Should(ContainElement(HavePrefix("add while-")))
		g.Expect(late.Events()).To(BeEmpty())
	}

	g.Expect(unsynced.Events()).NotTo(ContainElement(HavePrefix("update")),
		"a handler with resync period 0 receives no resync")

	// A removed informer never starts again. GetInformer returns a new one.
	g.Expect(c.RemoveInformer(ctx, &corev1.ConfigMap{})).To(Succeed())
	g.Expect(informer.IsStopped()).To(BeTrue())
	recreated, err := c.GetInformer(ctx, &corev1.ConfigMap{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(recreated.IsStopped()).To(BeFalse())
	fresh := &testutil.Recorder{Namespace: ns}
	_, err = recreated.AddEventHandler(fresh)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(fresh.Events).WithTimeout(patience).Should(ContainElements("add a", "add b"))
}

// TestConfiguredNamespaces checks that the cache also follows RBAC in namespaces that its options
// name. Each of them is readable on its own. A read of all of them together needs permission in
// every one.
func TestConfiguredNamespaces(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	one, two, other, u := createNamespace(t), createNamespace(t), createNamespace(t), newUser(t)
	create(t, configMap(one, "a"), configMap(two, "b"), configMap(other, "c"))
	u.grant(t, one, "configmaps", "list", "watch")
	c := u.start(t, scopedcache.Options{AccessReviewInterval: shortInterval},
		cache.Options{DefaultNamespaces: map[string]cache.Config{one: {}, two: {}}})
	informer, err := c.GetInformer(ctx, &corev1.ConfigMap{})
	g.Expect(err).NotTo(HaveOccurred())
	recorder := &testutil.Recorder{}
	registration, err := informer.AddEventHandler(recorder)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(recorder.Events).WithTimeout(patience).Should(Equal([]string{"add a"}))
	g.Expect(c.names(ctx, one)).To(Equal([]string{"a"}))
	g.Expect(c.isForbidden(ctx, two)).To(BeTrue())
	g.Expect(c.isForbidden(ctx, "")).To(BeTrue(), "a list of all namespaces never returns only a part of the objects")
	_, err = c.names(ctx, other)
	g.Expect(err).To(MatchError(ContainSubstring("unknown namespace")))
	g.Expect(apierrors.IsForbidden(err)).To(BeFalse())

	grant := u.grant(t, two, "configmaps", "list", "watch")
	g.Eventually(func() ([]string, error) { return c.names(ctx, "") }).WithTimeout(patience).Should(ConsistOf("a", "b"))
	limited := &corev1.ConfigMapList{}
	g.Expect(c.List(ctx, limited, client.Limit(1))).To(Succeed())
	g.Expect(limited.Items).To(HaveLen(1), "the limit applies to both namespaces together")
	g.Eventually(recorder.Events).WithTimeout(patience).Should(Equal([]string{"add a", "add b"}))
	g.Eventually(registration.HasSynced).WithTimeout(patience).Should(BeTrue())
	grant.revoke(t)
	g.Eventually(func() bool { return c.isForbidden(ctx, "") }).WithTimeout(patience).Should(BeTrue())
	g.Expect(c.names(ctx, one)).To(Equal([]string{"a"}))
	g.Expect(informer.RemoveEventHandler(registration)).To(Succeed())
}
