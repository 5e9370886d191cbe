package test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/accessor/credential"
	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/config"
)

// With the policy, whoever may write extensions still gains no ServiceAccount.
func TestAdmissionPolicy(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	_, err := cp.KubectlInput(ctx, config.Manifests("admission"), "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		_, err := cp.KubectlInput(context.Background(), config.Manifests("admission"), "delete", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	})
	ns := namespace(t)
	create(t, serviceAccount(ns, "target"))
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "writer-"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{clustercache.ClusterExtensionGVK.Group}, Resources: []string{"clusterextensions"}, Verbs: []string{"*"}},
	}}
	create(t, role)
	for _, user := range []string{"poor", "rich"} {
		create(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: "writer-"},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}, Subjects: []rbacv1.Subject{{Kind: "User", Name: user}}})
	}
	may := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "may"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, ResourceNames: []string{"target"}, Verbs: []string{"impersonate"}},
	}}
	create(t, may)
	create(t, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "may"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "may"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "rich"}}})
	as := func(user string) client.Client {
		config, err := cp.UserConfig(user)
		g.Expect(err).NotTo(HaveOccurred())
		c, err := client.New(config, client.Options{HTTPClient: httpClientFor(t, config)})
		g.Expect(err).NotTo(HaveOccurred())
		return c
	}
	poor, rich := as("poor"), as("rich")
	// The policy reaches the API server's cache a moment later.
	g.Eventually(func() error {
		e := extension(ns, "target")
		err := poor.Create(ctx, e)
		if err == nil {
			g.Expect(poor.Delete(ctx, e)).To(Succeed())
		}
		return err
	}).WithTimeout(patience).Should(MatchError(ContainSubstring(`right to "impersonate"`)))
	g.Eventually(func() error { return rich.Create(ctx, extension(ns, "target")) }).WithTimeout(patience).Should(Succeed())
	t.Cleanup(func() { g.Expect(admin.Delete(context.Background(), extension(ns, "target"))).To(Succeed()) })

	e := extension(ns, "target")
	g.Expect(poor.Get(ctx, key("target"), e)).To(Succeed())
	e.SetLabels(map[string]string{"unrelated": "edit"})
	g.Expect(poor.Update(ctx, e)).To(Succeed())
	g.Expect(unstructured.SetNestedField(e.Object, "default", "spec", "serviceAccount", "name")).To(Succeed())
	g.Expect(poor.Update(ctx, e)).To(MatchError(ContainSubstring(`right to "impersonate"`)))
}

func TestAllowIdentity(t *testing.T) {
	g := NewWithT(t)
	ns, other := namespace(t), namespace(t)
	mgr, err := ctrl.NewManager(cp.Config(), manager.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(mgr.GetHTTPClient().CloseIdleConnections)
	_, err = clustercache.SetupWithManager(t.Context(), mgr, clustercache.Options{Client: clustercache.ClientOptions{UserAgent: userAgent}}, unnamed())
	g.Expect(err).To(MatchError(ContainSubstring("AllowIdentity must be set for a cluster-scoped kind")))

	// Any kind can be an extension. Namespaced ones are confined to their namespace unless the author says otherwise;
	// here a ConfigMap names its ServiceAccount in two of its keys.
	extensions := clustercache.Options{
		Object:      &corev1.ConfigMap{},
		Credentials: credential.ServiceAccountTokens(credential.ServiceAccountOptions{NamespacePath: ".data.namespace", NamePath: ".data.serviceAccount"}),
	}
	grantOperatorConfigMaps(t)
	named := func(name, namespace string) *corev1.ConfigMap {
		cm := configMap(ns, name)
		cm.Data = map[string]string{"namespace": namespace, "serviceAccount": "sa"}
		return cm
	}
	create(t, serviceAccount(ns, "sa"))
	create(t, serviceAccount(other, "sa"))
	create(t, named("own", ns))
	create(t, named("foreign", other))
	o := startOperatorWithoutGuard(t, extensions)
	stateOf := func(name string) func() clustercache.ConnectionState {
		return func() clustercache.ConnectionState {
			state, _ := o.GetConnectionState(t.Context(), client.ObjectKey{Namespace: ns, Name: name})
			return state
		}
	}
	g.Eventually(stateOf("own")).WithTimeout(patience).Should(HaveField("Phase", clustercache.Connected))
	g.Eventually(stateOf("foreign")).WithTimeout(patience).Should(And(
		HaveField("Reason", clustercache.NotAllowed), HaveField("Message", ContainSubstring("its own namespace"))))
}

func grantOperatorConfigMaps(t *testing.T) {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "configmaps-"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}},
	}}
	create(t, role)
	create(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: "configmaps-"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}, Subjects: []rbacv1.Subject{{Kind: "User", Name: operatorUser}}})
}
