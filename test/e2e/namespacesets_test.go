package e2e

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// grantIn grants a ServiceAccount of one namespace permissions in another one.
func grantIn(t *testing.T, namespace, accountNamespace, account string) {
	t.Helper()
	create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account},
		Rules:      []rbacv1.PolicyRule{everythingInCore},
	})
	create(t, roleBinding(namespace, account,
		rbacv1.Subject{Kind: "ServiceAccount", Namespace: accountNamespace, Name: account}))
}

// of returns the events about objects of these names: each namespace has objects of its own, too.
func (c *fakeController) of(names ...string) []string {
	return slices.DeleteFunc(c.seen(), func(event string) bool {
		_, name, _ := strings.Cut(event, " ")
		return !slices.Contains(names, name)
	})
}

// A namespace that is deleted while there is no connection takes its objects along, for a watch of
// any set.
func TestNamespaceOfASetIsDeletedWhileDisconnected(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	bindOperator(t, "latchkey-rbac-events")
	bindOperator(t, "latchkey-namespaces")
	ns, goes := namespace(t), namespace(t)
	tenant(t, ns, "tenant")
	grantIn(t, goes, ns, "tenant")
	create(t, configMap(ns, "stays"))
	create(t, configMap(goes, "goes"))
	o := startOperator(t, clustercache.Options{
		Cache: clustercache.CacheOptions{WatchRBAC: true, AccessReviewInterval: 500 * time.Millisecond},
	})
	o.waitConnected(t, "tenant")
	controllers := map[string]*fakeController{}
	for name, set := range map[string]*scopedcache.Namespaces{
		"listed": scopedcache.InNamespaces(ns, goes), "allowed": scopedcache.WhereverAllowed(),
	} {
		c := newFakeController(t)
		controllers[name] = c
		options := c.watch(name, &corev1.ConfigMap{}, "")
		options.Scope.Namespaces = set
		g.Expect(o.Watch(ctx, key("tenant"), clustercache.NewWatcher(options))).To(Succeed())
		g.Eventually(func() []string { return c.of("stays", "goes") }).WithTimeout(patience).
			Should(ConsistOf("create stays", "create goes"), name)
		c.forget()
	}

	g.Expect(admin.Delete(ctx, serviceAccount(ns, "tenant"))).To(Succeed())
	o.waitReason(t, "tenant", clustercache.ReasonServiceAccountNotFound)
	g.Expect(admin.DeleteAllOf(ctx, &rbacv1.RoleBinding{}, client.InNamespace(goes))).To(Succeed())
	g.Expect(admin.Delete(ctx, configMap(goes, "goes"))).To(Succeed())
	gone := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: goes}}
	g.Expect(admin.Delete(ctx, gone)).To(Succeed())
	g.Eventually(func() bool { // with or without a controller of namespaces
		if err := admin.Get(ctx, client.ObjectKeyFromObject(gone), gone); err != nil {
			return apierrors.IsNotFound(err)
		}
		gone.Spec.Finalizers = nil
		_ = admin.SubResource("finalize").Update(ctx, gone)
		return false
	}).WithTimeout(patience).Should(BeTrue())
	create(t, serviceAccount(ns, "tenant"))
	o.waitConnected(t, "tenant")
	for name, c := range controllers {
		g.Eventually(func() []string { return c.of("stays", "goes") }).WithTimeout(patience).
			Should(ConsistOf("create stays", "delete goes"), name)
	}
}

// A content watch of a set has each kind in each of its namespaces. MaxNamespaces bounds what is
// allowed, and OnError says so. By the API server's own log, nothing is refused, and nothing else
// is watched or asked for.
func TestWatchContentOfASet(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	begin := time.Now()
	bindOperator(t, "latchkey-rbac-events")
	ns, other, third := namespace(t), namespace(t), namespace(t)
	namespace(t) // without permission
	tenant(t, ns, "tenant")
	grantIn(t, other, ns, "tenant")
	grantIn(t, third, ns, "tenant")
	for _, in := range []string{ns, other, third} {
		create(t, configMap(in, "in-"+in))
	}
	o := startOperator(t, clustercache.Options{
		Cache: clustercache.CacheOptions{
			WatchRBAC:            true,
			AccessReviewInterval: 500 * time.Millisecond,
			MaxNamespaces:        2,
		},
	})
	o.waitConnected(t, "tenant")
	c := newFakeController(t)
	said := make(chan string, 100)
	g.Expect(o.WatchContent(ctx, key("tenant"), clustercache.NewContentWatch(clustercache.ContentWatchOptions{
		Name:         "content",
		Watcher:      c,
		Objects:      []client.Object{configMap("", "x")},
		EventHandler: c.watch("content", nil, "").EventHandler,
		Scope:        clustercache.Scope{Namespaces: scopedcache.WhereverAllowed()},
		OnError: func(_ context.Context, err clustercache.WatchError) {
			if err.Scope.Namespaces != nil && err.Err != nil {
				said <- err.Err.Error()
			}
		},
	}))).To(Succeed())
	first := slices.Sorted(slices.Values([]string{ns, other, third}))[:2]
	g.Eventually(func() []string { return c.of("in-"+ns, "in-"+other, "in-"+third) }).WithTimeout(patience).
		Should(ConsistOf("create in-"+first[0], "create in-"+first[1]))
	g.Eventually(said).WithTimeout(patience).
		Should(Receive(Equal("2 of 2 namespaces synced, 1 left out by MaxNamespaces")))
	g.Expect(o.state("tenant").Watches).To(HaveExactElements(HaveField("Scope.Namespaces",
		Equal(scopedcache.WhereverAllowed()))))
	watched := map[string]struct{}{}
	for _, event := range auditLog(t, begin) {
		if event.who() != "system:serviceaccount:"+ns+":tenant" {
			continue
		}
		g.Expect(event.ResponseStatus.Code).NotTo(Equal(http.StatusForbidden), event.String())
		if event.what() == "watch configmaps" {
			watched[event.ObjectRef.Namespace] = struct{}{}
		}
	}
	g.Expect(slices.Sorted(maps.Keys(watched))).To(Equal(first))
}

// At the API server of a kubeconfig, the identity's own permissions decide, and not what the host
// operator sees of namespaces of the same names.
func TestSetsAtAnotherAPIServer(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	bindOperator(t, "latchkey-rbac-events")
	bindOperator(t, "latchkey-namespaces")
	ns := namespace(t)
	tenant(t, ns, "tenant")
	create(t, configMap(ns, "here"))
	mark := labels.Set{"set": ns}
	labelled := &corev1.Namespace{}
	g.Expect(admin.Get(ctx, client.ObjectKey{Name: ns}, labelled)).To(Succeed())
	labelled.Labels = mark
	g.Expect(admin.Update(ctx, labelled)).To(Succeed())
	create(t, kubeconfigSecret(ns, "tenant", kubeconfigOf(t, clientcmdapi.AuthInfo{Token: token(t, ns, "tenant")})))
	grantOperatorSecrets(t, ns, "tenant")
	o := startOperator(t, clustercache.Options{
		Credentials: credential.KubeconfigSecrets(credential.KubeconfigOptions{
			Namespace: ns,
			Allow:     credential.SecretsGuardedByAdmission,
		}),
		Cache: clustercache.CacheOptions{WatchRBAC: true, AccessReviewInterval: 500 * time.Millisecond},
	})
	o.waitConnected(t, "tenant")
	watch := func(name string, set *scopedcache.Namespaces) (*fakeController, chan clustercache.WatchError) {
		c, errs := newFakeController(t), make(chan clustercache.WatchError, 100)
		options := c.watch(name, &corev1.ConfigMap{}, "")
		options.Scope.Namespaces = set
		options.OnError = func(_ context.Context, err clustercache.WatchError) { errs <- err }
		g.Expect(o.Watch(ctx, key("tenant"), clustercache.NewWatcher(options))).To(Succeed())
		return c, errs
	}
	byLabels, errs := watch("labels", scopedcache.NamespacesWithLabels(labels.SelectorFromSet(mark)))
	g.Eventually(errs).WithTimeout(patience).Should(Receive(And(
		HaveField("State", scopedcache.StateForbidden), HaveField("Scope.Namespace", ""))))
	allowed, errs := watch("allowed", scopedcache.WhereverAllowed())
	g.Eventually(errs).WithTimeout(patience).Should(Receive(And(
		HaveField("State", scopedcache.StateForbidden),
		HaveField("Err", MatchError(ContainSubstring("RBACWatcher of this API server"))))))
	listed, _ := watch("listed", scopedcache.InNamespaces(ns))
	g.Eventually(func() []string { return listed.of("here") }).WithTimeout(patience).Should(Equal([]string{"create here"}))
	g.Expect(byLabels.seen()).To(BeEmpty())
	g.Expect(allowed.seen()).To(BeEmpty())
}
