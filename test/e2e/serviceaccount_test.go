package e2e

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// expectNotConnected checks that every getter returns a NotConnectedError with the given reason.
func expectNotConnected(t *testing.T, o *operator, name string, reason clustercache.Reason) {
	t.Helper()
	g := NewWithT(t)
	ctx := t.Context()
	getters := map[string]func() error{
		"GetClient":         func() error { _, err := o.GetClient(ctx, key(name)); return err },
		"GetReader":         func() error { _, err := o.GetReader(ctx, key(name)); return err },
		"GetUncachedClient": func() error { _, err := o.GetUncachedClient(ctx, key(name)); return err },
		"GetRESTConfig":     func() error { _, err := o.GetRESTConfig(ctx, key(name)); return err },
		"GetCluster":        func() error { _, err := o.GetCluster(ctx, key(name)); return err },
		"Watch": func() error {
			return o.Watch(ctx, key(name),
				clustercache.NewWatcher(clustercache.WatcherOptions{Name: "w", Kind: &corev1.ConfigMap{}}))
		},
	}
	for getter, call := range getters {
		err := call()
		g.Expect(err).To(MatchError(clustercache.ErrNotConnected), getter)
		var notConnected *clustercache.NotConnectedError
		g.Expect(errors.As(err, &notConnected)).To(BeTrue(), getter)
		g.Expect(notConnected.Extension).To(Equal(key(name)), getter)
		g.Expect(notConnected.Reason).To(Equal(reason), getter)
	}
}

func TestMissingServiceAccount(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	create(t, extension(ns, "missing"))
	tenant(t, ns, "bystander")
	o := startOperator(t, clustercache.Options{})

	state := o.waitReason(t, "missing", clustercache.ReasonServiceAccountNotFound)
	g.Expect(state.Message).To(ContainSubstring(ns + "/missing"))
	g.Expect(state.Identity).To(BeZero())
	g.Expect(state.Epoch).To(BeZero())
	expectNotConnected(t, o, "missing", clustercache.ReasonServiceAccountNotFound)
	o.waitConnected(t, "bystander")
}

func TestLateServiceAccount(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	create(t, extension(ns, "late"))
	// only the ServiceAccount's event can start a connect
	o := startOperator(t, clustercache.Options{ConnectBackoff: never()})
	o.waitReason(t, "late", clustercache.ReasonServiceAccountNotFound)

	create(t, serviceAccount(ns, "late"))
	state := o.waitConnected(t, "late")
	g.Expect(state.Reason).To(BeEmpty())
	g.Expect(state.Message).To(BeEmpty())
	g.Expect(state.Identity.Username).To(Equal("system:serviceaccount:" + ns + ":late"))
	g.Expect(state.Identity.UID).To(Equal(uidOf(t, ns, "late")))
	g.Expect(state.Epoch).To(BeEquivalentTo(1))
	g.Expect(state.TokenExpires).NotTo(BeZero())
	g.Expect(state.Target).To(Equal(cp.Config().Host))
}

func TestDeletedServiceAccount(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "deleted")
	tenant(t, ns, "bystander")
	o := startOperator(t, clustercache.Options{ConnectBackoff: never()})
	o.waitConnected(t, "deleted")
	bystander := o.waitConnected(t, "bystander")

	old := handlesOf(t, o, "deleted")
	g.Expect(old.client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "kube-root-ca.crt"}, &corev1.ConfigMap{})).
		To(Or(Succeed(), Satisfy(func(err error) bool { return client.IgnoreNotFound(err) == nil })), "the informer runs")
	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "deleted"))).To(Succeed())

	o.waitReason(t, "deleted", clustercache.ReasonServiceAccountNotFound)
	expectNotConnected(t, o, "deleted", clustercache.ReasonServiceAccountNotFound)
	old.expectDead(t, ns, clustercache.ReasonServiceAccountNotFound)
	g.Expect(o.state("bystander").Since).To(Equal(bystander.Since), "the other extension is not affected")
}

func TestRecreatedServiceAccount(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "recreated")
	o := startOperator(t, clustercache.Options{ConnectBackoff: never()})
	before := o.waitConnected(t, "recreated")
	old := handlesOf(t, o, "recreated")

	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "recreated"))).To(Succeed())
	create(t, serviceAccount(ns, "recreated"))
	uid := uidOf(t, ns, "recreated")
	after := o.waitFor(t, "recreated", func(s clustercache.ConnectionState) bool {
		return s.Phase == clustercache.PhaseConnected && s.Identity.UID == uid
	})
	g.Expect(after.Identity.Username).To(Equal(before.Identity.Username))
	g.Expect(after.Identity.UID).NotTo(Equal(before.Identity.UID))
	g.Expect(after.Epoch).To(Equal(before.Epoch + 1))
	old.expectDead(t, ns, "") // the old handles stay dead, even after the reconnect
	c, err := o.GetClient(t.Context(), key("recreated"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "by-the-new-one"}})).To(Succeed())
}

// TestChangedReference checks that a change of the reference is a change of identity.
func TestChangedReference(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "first")
	create(t, serviceAccount(ns, "second"))
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "first")
	old := handlesOf(t, o, "first")

	e := extension(ns, "first")
	g.Expect(admin.Get(t.Context(), key("first"), e)).To(Succeed())
	g.Expect(unstructured.SetNestedField(e.Object, "second", "spec", "serviceAccount", "name")).To(Succeed())
	g.Expect(admin.Update(t.Context(), e)).To(Succeed())
	o.waitFor(t, "first", func(s clustercache.ConnectionState) bool {
		return s.Phase == clustercache.PhaseConnected && s.Identity.Username == "system:serviceaccount:"+ns+":second"
	})
	old.expectDead(t, ns, clustercache.ReasonIdentityMismatch)
}

// TestDeletedNamespace relies on the namespace controller, which deletes ServiceAccounts with their
// namespace.
func TestDeletedNamespace(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	create(t, serviceAccount(ns, "homeless"))
	create(t, extension(ns, "homeless"))
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "homeless")
	g.Expect(admin.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})).To(Succeed())
	o.waitReason(t, "homeless", clustercache.ReasonServiceAccountNotFound)
}

func TestDeletedExtension(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "gone")
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "gone")
	old := handlesOf(t, o, "gone")

	g.Expect(admin.Delete(t.Context(), extension(ns, "gone"))).To(Succeed())
	g.Eventually(func() bool { _, known := o.GetConnectionState(t.Context(), key("gone")); return known }).
		WithTimeout(patience).Should(BeFalse())
	g.Expect(o.ListConnectionStates(t.Context())).NotTo(ContainElement(HaveField("Extension", key("gone"))))
	old.expectDead(t, ns, clustercache.ReasonDeleted)
	expectNotConnected(t, o, "gone", clustercache.ReasonNotStarted)
}

func TestUnknownExtension(t *testing.T) {
	o := startOperator(t, clustercache.Options{})
	expectNotConnected(t, o, "unknown", clustercache.ReasonNotStarted)
}

func TestInvalidReference(t *testing.T) {
	g := NewWithT(t)
	e := extension("not a namespace", "invalid")
	create(t, e)
	o := startOperator(t, clustercache.Options{})
	state := o.waitReason(t, "invalid", clustercache.ReasonInvalidReference)
	g.Expect(state.Message).To(ContainSubstring("spec.namespace"))
	g.Expect(state.UID).To(Equal(types.UID(e.GetUID())))
}
