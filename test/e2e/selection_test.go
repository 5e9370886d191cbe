package e2e

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// label sets a label of an extension. An empty value removes the label.
func label(t *testing.T, name, label, value string) {
	t.Helper()
	g := NewWithT(t)
	e := extension("", name)
	g.Expect(admin.Get(t.Context(), key(name), e)).To(Succeed())
	labels := map[string]string{}
	if value != "" {
		labels[label] = value
	}
	e.SetLabels(labels)
	g.Expect(admin.Update(t.Context(), e)).To(Succeed())
}

func (o *operator) known(name string) func() bool {
	return func() bool {
		_, known := o.GetConnectionState(context.Background(), key(name))
		return known
	}
}

// TestSelection checks which extensions the operator selects. An extension that does not match is
// unknown. An extension that stops matching is disconnected, and extension sources are notified. An
// extension that matches again gets a new connection.
func TestSelection(t *testing.T) {
	for name, tc := range map[string]struct {
		options clustercache.Options
		label   string
	}{
		"WatchFilterValue": {clustercache.Options{WatchFilterValue: "ours"}, clustercache.WatchLabel},
		"Filter": {clustercache.Options{Filter: func(o client.Object) bool {
			return o.GetLabels()["shard"] == "ours"
		}}, "shard"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ns := namespace(t)
			tenant(t, ns, "ours")
			tenant(t, ns, "theirs")
			label(t, "ours", tc.label, "ours")
			label(t, "theirs", tc.label, "theirs")
			o := startOperator(t, tc.options)
			o.waitConnected(t, "ours")
			g.Expect(o.known("theirs")()).To(BeFalse())
			expectNotConnected(t, o, "theirs", clustercache.ReasonNotStarted)
			events := listen(t, o, "")
			old := handlesOf(t, o, "ours")
			c := newFakeController(t)
			g.Expect(o.Watch(t.Context(), key("ours"),
				clustercache.NewWatcher(c.watch("content", &corev1.ConfigMap{}, ns)))).To(Succeed())

			label(t, "ours", tc.label, "")
			g.Eventually(o.known("ours")).WithTimeout(patience).Should(BeFalse())
			old.expectDead(t, ns, clustercache.ReasonFiltered)
			g.Eventually(events.heard).WithTimeout(patience).Should(ContainElement(HavePrefix("ours deleted")))
			label(t, "theirs", tc.label, "ours")
			o.waitConnected(t, "theirs")
			label(t, "ours", tc.label, "ours")
			state := o.waitConnected(t, "ours")
			g.Expect(state.Epoch).To(BeEquivalentTo(1), "the epoch starts again")
			g.Expect(state.Watches).To(BeEmpty(), "no watch outlives the selection")
			old.expectDead(t, ns, clustercache.ReasonFiltered)
		})
	}
}

// TestSharedServiceAccount checks that two extensions with one ServiceAccount share its token and
// its informers.
func TestSharedServiceAccount(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "one")
	two := extension(ns, "one")
	two.SetName("two")
	begin := time.Now()
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "one")
	create(t, two)
	o.waitConnected(t, "two")
	tokens := 0
	for _, event := range auditLog(t, begin) {
		if event.what() == "create serviceaccounts/token" && event.ObjectRef.Namespace == ns &&
			event.Stage == "ResponseComplete" {
			tokens++
		}
	}
	g.Expect(tokens).To(Equal(1))

	first, second := handlesOf(t, o, "one"), handlesOf(t, o, "two")
	read := func(h handles) error {
		return h.client.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))
	}
	g.Expect(read(first)).To(Succeed())
	g.Expect(read(second)).To(Succeed())
	g.Expect(watchesOf(t, "configmaps", ns)).To(Equal(1), "they are one user, and share a watch")
	g.Expect(admin.Delete(t.Context(), extension(ns, "one"))).To(Succeed())
	g.Eventually(o.known("one")).WithTimeout(patience).Should(BeFalse())
	first.expectDead(t, ns, clustercache.ReasonDeleted)
	g.Expect(read(second)).To(Succeed())
	g.Expect(second.client.Create(t.Context(), configMap(ns, "by-two"))).
		To(Succeed(), "the token stays in use while any extension needs it")
	username := "system:serviceaccount:" + ns + ":one"
	g.Eventually(func() []string { return requestsOfInformers(t, username, begin) }).WithTimeout(patience).
		Should(ContainElement("watch as two"))
	g.Eventually(func() int { return watchesOf(t, "configmaps", ns) }).WithTimeout(patience).Should(Equal(1))
}

// TestClusterAndScheme covers extensions in another cluster than the manager's, and a separate
// scheme for connections.
func TestClusterAndScheme(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "elsewhere")
	config, err := cp.UserConfig(operatorUser)
	g.Expect(err).NotTo(HaveOccurred())
	remote, err := cluster.New(config)
	g.Expect(err).NotTo(HaveOccurred())
	// The manager's own user may not even list extensions.
	unprivileged, err := cp.UserConfig("unprivileged")
	g.Expect(err).NotTo(HaveOccurred())
	scheme := runtime.NewScheme()
	g.Expect(corev1.AddToScheme(scheme)).To(Succeed())
	o := newOperatorAt(t, unprivileged,
		clustercache.Options{Cluster: remote, Scheme: scheme, AllowIdentity: clustercache.GuardedByAdmission},
		func(o *operator, _ *clustercache.Options) {
			g.Expect(o.mgr.Add(remote)).To(Succeed())
			o.also = append(o.also, func() { utilnet.CloseIdleConnectionsFor(remote.GetHTTPClient().Transport) })
		}).start(t)

	state := o.waitConnected(t, "elsewhere")
	g.Expect(state.Identity.Username).To(Equal("system:serviceaccount:" + ns + ":elsewhere"))
	c, err := o.GetClient(t.Context(), key("elsewhere"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.Scheme()).To(BeIdenticalTo(scheme))
	g.Expect(c.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))).To(Succeed())
	g.Expect(runtime.IsNotRegisteredError(c.List(t.Context(), &unregisteredList{}))).To(BeTrue())
	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "elsewhere"))).To(Succeed())
	o.waitReason(t, "elsewhere", clustercache.ReasonServiceAccountNotFound)
}

// unregisteredList is registered in no scheme.
type unregisteredList struct {
	metav1.TypeMeta
	metav1.ListMeta
}

func (l *unregisteredList) DeepCopyObject() runtime.Object { return &unregisteredList{} }

// TestPanickingOptions covers functions of the author that panic on the content of a tenant's
// extension. The panic disconnects that extension, so the extension keeps no connection that it
// should lose. Other extensions are not affected.
func TestPanickingOptions(t *testing.T) {
	bad := func(o client.Object) {
		if o.GetLabels()["bad"] != "" {
			panic("unexpected label")
		}
	}
	for name, tc := range map[string]struct {
		options clustercache.Options
		reason  clustercache.Reason
	}{
		"Filter": {clustercache.Options{Filter: func(o client.Object) bool { bad(o); return true }},
			clustercache.ReasonFiltered},
		"AllowIdentity": {clustercache.Options{AllowIdentity: func(_ context.Context, o client.Object,
			_ types.NamespacedName) error {
			bad(o)
			return nil
		}}, clustercache.ReasonNotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ns := namespace(t)
			tenant(t, ns, "bad")
			tenant(t, ns, "good")
			o := startOperator(t, tc.options)
			o.waitConnected(t, "bad")
			bystander := o.waitConnected(t, "good")
			old := handlesOf(t, o, "bad")
			label(t, "bad", "bad", "yes")
			g.Eventually(func() error { _, err := o.GetClient(t.Context(), key("bad")); return err }).WithTimeout(patience).
				Should(MatchError(clustercache.ErrNotConnected))
			old.expectDead(t, ns, tc.reason)
			label(t, "bad", "bad", "")
			o.waitConnected(t, "bad")
			g.Expect(o.state("good").Since).To(Equal(bystander.Since))
		})
	}
}
