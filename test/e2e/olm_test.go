package e2e

import (
	"context"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/config"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// olmExtension returns a ClusterExtension of Operator Lifecycle Manager. An empty serviceAccount
// leaves that field out.
func olmExtension(name, serviceAccount string) *unstructured.Unstructured {
	e := clustercache.OLMClusterExtension().(*unstructured.Unstructured)
	e.SetName(name)
	e.Object["spec"] = map[string]any{
		"namespace": "default",
		"source": map[string]any{"sourceType": "Catalog",
			"catalog": map[string]any{"packageName": "argocd", "version": "0.6.0"}},
	}
	if serviceAccount != "" {
		e.Object["spec"].(map[string]any)["serviceAccount"] = map[string]any{"name": serviceAccount}
	}
	return e
}

// TestBesideOLM covers a cluster where Operator Lifecycle Manager has a kind of the same name. No
// manifest that our docs say to apply may replace OLM's definition. Nor may a manifest lose the
// content of OLM's objects, or refuse those objects.
func TestBesideOLM(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	plane := testenv.Start(t, controlplane.Options{}) // at first with only OLM's kind
	clientFor := func(restConfig *rest.Config) client.Client {
		c, err := client.New(restConfig, client.Options{HTTPClient: httpClientFor(t, restConfig)})
		g.Expect(err).NotTo(HaveOccurred())
		return c
	}
	root := clientFor(plane.Config())
	apply := func(manifests string) {
		t.Helper()
		_, err := plane.KubectlInput(ctx, manifests, "apply", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	}
	establish := func(name string) {
		t.Helper()
		_, err := plane.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd/"+name)
		g.Expect(err).NotTo(HaveOccurred())
	}
	definition := func(file string) {
		t.Helper()
		content, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		apply(string(content))
		establish("clusterextensions.olm.operatorframework.io")
	}
	grant := func(user string, rules ...rbacv1.PolicyRule) {
		t.Helper()
		g.Expect(root.Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules})).
			To(Succeed())
		g.Expect(root.Create(ctx,
			&rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: user},
				Subjects:   []rbacv1.Subject{{Kind: "User", Name: user}},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
			})).To(Succeed())
	}
	packageOf := func(name string) string {
		e := olmExtension(name, "")
		g.Expect(root.Get(ctx, client.ObjectKeyFromObject(e), e)).To(Succeed())
		found, _, _ := unstructured.NestedString(e.Object, "spec", "source", "catalog", "packageName")
		return found
	}

	definition("testdata/olm-v1.10.yaml")
	for _, name := range []string{"installer", "other"} {
		g.Expect(root.Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}})).To(Succeed())
	}
	g.Expect(root.Create(ctx, olmExtension("argocd", "installer"))).To(Succeed())
	olmUser := rbacv1.PolicyRule{
		APIGroups: []string{"olm.operatorframework.io"},
		Resources: []string{"clusterextensions"},
		Verbs:     []string{"*"},
	}
	grant("olm-user", olmUser)
	grant("olm-deputy", olmUser,
		rbacv1.PolicyRule{
			APIGroups:     []string{""},
			Resources:     []string{"serviceaccounts"},
			ResourceNames: []string{"installer"},
			Verbs:         []string{"impersonate"},
		})
	userConfig, err := plane.UserConfig("olm-user")
	g.Expect(err).NotTo(HaveOccurred())
	user := clientFor(userConfig)
	deputyConfig, err := plane.UserConfig("olm-deputy")
	g.Expect(err).NotTo(HaveOccurred())
	deputy := clientFor(deputyConfig)

	// The administrator may install latchkey here without knowing of the other kind. The error of
	// the setup names both kinds.
	setup := func(options clustercache.Options) (clustercache.ClusterCache, manager.Manager, error) {
		mgr, err := ctrl.NewManager(plane.Config(), manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(mgr.GetHTTPClient().Transport) })
		options.AllowIdentity = clustercache.GuardedByAdmission
		cc, err := clustercache.SetupWithManager(ctx, mgr, quick(options), unnamed())
		return cc, mgr, err
	}
	_, _, err = setup(clustercache.Options{})
	g.Expect(err).
		To(MatchError(And(ContainSubstring("clusterextensions.latchkey.dev"),
			ContainSubstring("clusterextensions.olm.operatorframework.io"),
			ContainSubstring("clustercache.OLMClusterExtension()"), ContainSubstring("config/crd"))))

	before := &unstructured.Unstructured{}
	before.SetAPIVersion("apiextensions.k8s.io/v1")
	before.SetKind("CustomResourceDefinition")
	g.Expect(root.Get(ctx, types.NamespacedName{Name: "clusterextensions.olm.operatorframework.io"}, before)).
		To(Succeed())
	apply(config.Manifests())
	establish("clusterextensions.latchkey.dev")
	after := before.DeepCopy()
	g.Expect(root.Get(ctx, client.ObjectKeyFromObject(before), after)).To(Succeed())
	g.Expect(after.GetGeneration()).To(Equal(before.GetGeneration()), "the definition is unchanged")
	g.Expect(packageOf("argocd")).To(Equal("argocd"), "the content of OLM's objects is unchanged")

	// Our own policy is in force, and does not apply to OLM's objects.
	ours := extension("default", "installer")
	g.Eventually(func() error { return user.Create(ctx, ours, client.DryRunAll) }).WithTimeout(patience).
		Should(HaveOccurred())
	g.Eventually(func() error { return root.Create(ctx, ours.DeepCopy(), client.DryRunAll) }).WithTimeout(patience).
		Should(Succeed())
	g.Expect(user.Create(ctx, olmExtension("unguarded", "installer"))).To(Succeed())

	// With the optional policy for OLM, naming a ServiceAccount requires permission to act as it.
	apply(config.Manifests(config.AdmissionOLM))
	g.Eventually(func() error { return user.Create(ctx, olmExtension("guarded", "installer"), client.DryRunAll) }).
		WithTimeout(patience).Should(
		MatchError(ContainSubstring(`user "olm-user" may not act as ServiceAccount "default/installer"`)))
	g.Expect(deputy.Create(ctx, olmExtension("guarded", "other"))).
		To(MatchError(ContainSubstring(`may not act as ServiceAccount "default/other"`)))
	g.Expect(deputy.Create(ctx, olmExtension("guarded", "installer"))).To(Succeed())
	patch := func(c client.Client, name, patch string) error {
		return c.Patch(ctx, olmExtension(name, ""), client.RawPatch(types.MergePatchType, []byte(patch)))
	}
	g.Expect(patch(user, "guarded", `{"spec":{"source":{"catalog":{"version":"0.7.0"}}}}`)).
		To(Succeed(), "admission allows a change that keeps the reference")
	g.Expect(patch(user, "guarded", `{"spec":{"serviceAccount":{"name":"other"}}}`)).To(Satisfy(apierrors.IsForbidden))

	// OLM v1.11 ignores the field. Admission allows an object without the field, and allows its
	// removal.
	definition("testdata/olm-v1.11.yaml")
	g.Eventually(func() error { return user.Create(ctx, olmExtension("modern", "")) }).WithTimeout(patience).
		Should(Succeed())
	g.Expect(patch(user, "modern", `{"spec":{"source":{"catalog":{"version":"0.7.0"}}}}`)).To(Succeed())
	g.Expect(patch(user, "unguarded", `{"spec":{"serviceAccount":null}}`)).To(Succeed())
	g.Expect(patch(user, "modern", `{"spec":{"serviceAccount":{"name":"installer"}}}`)).To(Satisfy(apierrors.IsForbidden))
	g.Expect(packageOf("argocd")).To(Equal("argocd"))

	// The preset connects the extensions that name a ServiceAccount.
	cc, mgr, err := setup(clustercache.Options{Object: clustercache.OLMClusterExtension()})
	g.Expect(err).NotTo(HaveOccurred())
	managerCtx, stop := context.WithCancel(ctx)
	managerErr := make(chan error, 1)
	go func() { managerErr <- mgr.Start(managerCtx) }()
	state := func(name string) clustercache.ConnectionState {
		state, _ := cc.GetConnectionState(ctx, key(name))
		return state
	}
	g.Eventually(func() string { return state("guarded").Identity.Username }).WithTimeout(patience).
		Should(Equal("system:serviceaccount:default:installer"))
	g.Eventually(func() clustercache.Reason { return state("modern").Reason }).WithTimeout(patience).
		Should(Equal(clustercache.ReasonInvalidReference))
	stop()
	g.Eventually(managerErr).WithTimeout(patience).Should(Receive(BeNil()))
}
