package remote

import (
	"context"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/examples/clusterprofile"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// writers lets a user write the ConfigMap of the example at env.
func writers(t *testing.T, env *testenv.Env, name, user string) {
	t.Helper()
	const ns = clusterprofile.Namespace
	create(t, env, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""},
			Resources: []string{"configmaps"},
			Verbs:     []string{"create", "patch"},
		}},
	})
	create(t, env, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	})
}

// kubeconfigOf returns a kubeconfig for env as a user with a client certificate.
func kubeconfigOf(t *testing.T, env *testenv.Env, user string) []byte {
	t.Helper()
	g := NewWithT(t)
	config, err := env.UserConfig(user)
	g.Expect(err).NotTo(HaveOccurred())
	content, err := clientcmd.Write(clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters: map[string]*clientcmdapi.Cluster{
			"it": {Server: config.Host, CertificateAuthorityData: config.CAData},
		},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{
			"it": {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData},
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	return content
}

// The example, at two clusters: one without a Secret, and one by the kubeconfig of a Secret, in one
// ClusterCache. A ClusterProfile switches between the two.
func TestClusterProfiles(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	for _, file := range []string{"crd", "rbac"} {
		content, err := os.ReadFile("../../../examples/clusterprofile/config/" + file + ".yaml")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = host.KubectlInput(ctx, string(content), "apply", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	}
	_, err := host.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s",
		"crd/clusterprofiles.multicluster.x-k8s.io")
	g.Expect(err).NotTo(HaveOccurred())
	create(t, &host, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "clusterprofile-operator"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "clusterprofile-operator"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: operatorUser}},
	})
	ns := namespace(t)
	create(t, &host, serviceAccount(ns, "fleet"))
	create(t, &host, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "third"},
		Data:       map[string][]byte{"value": kubeconfigOf(t, third, "by-secret")},
	})
	create(t, &host, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "secrets"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups:     []string{""},
			Resources:     []string{"secrets"},
			ResourceNames: []string{"third"},
			Verbs:         []string{"list", "watch"},
		}},
	})
	create(t, &host, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "secrets"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "secrets"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: operatorUser}},
	})
	fleet := usernameOf(client.ObjectKey{Namespace: ns, Name: "fleet"})
	writers(t, third, ns, "by-secret")

	kinds := runtime.NewScheme()
	g.Expect(scheme.AddToScheme(kinds)).To(Succeed())
	g.Expect(clusterprofile.AddToScheme(kinds)).To(Succeed())
	c, err := client.New(host.Config(), client.Options{Scheme: kinds, HTTPClient: host.AdminHTTP})
	g.Expect(err).NotTo(HaveOccurred())
	o := startManager(t, kinds, func(mgr manager.Manager, unnamed controller.Options) (clustercache.ClusterCache, error) {
		return clusterprofile.SetupWithManager(ctx, mgr, clusterprofile.Options{
			UsernamePrefix: "host:",
			Allow: func(target credential.Target) error {
				if target.Server != second.Config().Host {
					return errors.New("not in the table")
				}
				return nil
			},
			Secrets: func(profile client.ObjectKey) (credential.SecretReference, bool) {
				return credential.SecretReference{Namespace: ns, Name: "third", Key: "value"}, profile.Name == "spoke"
			},
		}, unnamed)
	})

	profile := &clusterprofile.ClusterProfile{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "spoke"},
		Spec:       clusterprofile.Spec{ClusterManager: clusterprofile.ClusterManager{Name: "tests"}},
	}
	g.Expect(c.Create(ctx, profile)).To(Succeed())
	t.Cleanup(func() { g.Expect(c.Delete(context.Background(), profile)).To(Succeed()) })
	key := client.ObjectKeyFromObject(profile)
	provide := func(providers ...clusterprofile.AccessProvider) {
		t.Helper()
		g.Expect(c.Get(ctx, key, profile)).To(Succeed())
		before := profile.DeepCopyObject().(*clusterprofile.ClusterProfile)
		profile.Status.AccessProviders = providers
		g.Expect(c.Status().Patch(ctx, profile, client.MergeFrom(before))).To(Succeed())
	}
	condition := func(kind, reason, says string) {
		t.Helper()
		g.Eventually(func() *metav1.Condition {
			g.Expect(c.Get(ctx, key, profile)).To(Succeed())
			return meta.FindStatusCondition(profile.Status.Conditions, kind)
		}).WithTimeout(patience).Should(And(HaveField("Reason", reason), HaveField("Message", ContainSubstring(says))))
	}
	wrote := func(env *testenv.Env, user string, since time.Time) {
		t.Helper()
		g.Eventually(func() []string {
			names, _ := users(audit(t, env, since))
			return names
		}).WithTimeout(patience).WithPolling(200 * time.Millisecond).Should(ContainElement(user))
		g.Eventually(func() (map[string]string, error) {
			found := &corev1.ConfigMap{}
			err := env.Admin.Get(ctx, clusterprofile.ConfigMapOf(key), found)
			return found.Data, err
		}).WithTimeout(patience).Should(HaveKeyWithValue("profile", key.String()))
	}
	plugin := clusterprofile.AccessProvider{Name: "google", Cluster: clusterprofile.Cluster{Server: "https://192.0.2.1"}}
	byToken := clusterprofile.AccessProvider{
		Name: "serviceaccount-token",
		Cluster: clusterprofile.Cluster{
			Server:                   second.Config().Host,
			CertificateAuthorityData: second.Config().CAData,
		},
	}
	bySecret := clusterprofile.AccessProvider{Name: "secret", Cluster: byToken.Cluster}

	condition("Connected", "NotStarted", "no accessProviders yet")
	provide(plugin)
	condition("Connected", "InvalidReference", `add the access provider "serviceaccount-token"`)
	condition("Connected", "InvalidReference", "no plugin is run")
	begin := time.Now()
	provide(plugin, byToken)
	condition("Written", "Forbidden", "configmaps")
	condition("Connected", "Connected", "")
	writers(t, second, ns, fleet)
	condition("Written", "Applied", "")
	wrote(second, fleet, begin)
	first, _ := o.GetConnectionState(ctx, key)
	g.Expect(first.Identity.Username).To(Equal(fleet))

	begin = time.Now()
	provide(bySecret, byToken)
	wrote(third, "by-secret", begin)
	state, _ := o.GetConnectionState(ctx, key)
	g.Expect(state.Epoch).To(Equal(first.Epoch + 1))
	g.Expect(state.Target).To(Equal(third.Config().Host), "the status leads no Secret elsewhere")

	provide(byToken)
	g.Eventually(func() string {
		state, _ = o.GetConnectionState(ctx, key)
		return state.Identity.Username
	}).WithTimeout(patience).Should(Equal(fleet))
	g.Expect(state.Epoch).To(Equal(first.Epoch + 2))

	elsewhere := byToken
	elsewhere.Cluster.Server = third.Config().Host
	provide(elsewhere)
	condition("Connected", "NotAllowed", "not in the table")
	elsewhere = byToken
	elsewhere.Cluster.InsecureSkipTLSVerify = true
	provide(elsewhere)
	condition("Connected", "NotAllowed", "insecure-skip-tls-verify")
}
