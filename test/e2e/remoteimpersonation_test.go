package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// impersonators creates ServiceAccounts that may impersonate others of the namespace: the own users
// of kubeconfigs.
func impersonators(t *testing.T, ns string, names ...string) {
	t.Helper()
	create(t,
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "impersonators"},
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups:     []string{""},
					Resources:     []string{"serviceaccounts"},
					ResourceNames: []string{"tenant", "other"},
					Verbs:         []string{"impersonate"},
				}},
		})
	var subjects []rbacv1.Subject
	for _, name := range names {
		create(t, serviceAccount(ns, name))
		subjects = append(subjects, rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: name})
	}
	create(t, roleBinding(ns, "impersonators", subjects...))
}

// impersonating are options with which an extension acts as the ServiceAccount that it names, with
// the kubeconfig of its name.
func impersonating(ns string) clustercache.Options {
	return clustercache.Options{Credentials: credential.KubeconfigSecrets(credential.KubeconfigOptions{
		Namespace: ns,
		Allow:     credential.SecretsGuardedByAdmission,
		Impersonate: func(object client.Object) (types.NamespacedName, error) {
			return types.NamespacedName{Namespace: ns, Name: accountOf(object)}, nil
		},
		AllowImpersonate: func(_ context.Context, _ client.Object, account types.NamespacedName) error {
			if account.Name == "refused" {
				return errors.New("not this one")
			}
			return nil
		},
	})}
}

func setAccount(t *testing.T, ns, name, account string) client.Object {
	t.Helper()
	e := extension(ns, name)
	NewWithT(t).Expect(admin.Patch(t.Context(), e, client.RawPatch(types.MergePatchType,
		[]byte(`{"spec":{"serviceAccount":{"name":"`+account+`"}}}`)))).To(Succeed())
	return e
}

// TestRemoteImpersonation checks extensions that act as a ServiceAccount of the kubeconfig's
// cluster: the API server states both users, a newer kubeconfig of the same user is taken up, and
// another user or ServiceAccount is another connection.
func TestRemoteImpersonation(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	ns := namespace(t)
	impersonators(t, ns, "admin", "deputy")
	for _, name := range []string{"tenant", "other"} {
		create(t, serviceAccount(ns, name))
		grant(t, ns, name, everythingInCore)
	}
	grantOperatorSecrets(t, ns, "far")
	kubeconfig := func(name string) []byte { return kubeconfigOf(t, clientcmdapi.AuthInfo{Token: token(t, ns, name)}) }
	create(t, kubeconfigSecret(ns, "far", kubeconfig("admin")))
	far := extension(ns, "tenant")
	far.SetName("far")
	create(t, far)
	o := startOperator(t, impersonating(ns))
	username := func(name string) string { return "system:serviceaccount:" + ns + ":" + name }

	first := o.waitConnected(t, "far")
	g.Expect(first.Identity.Username).To(Equal(username("tenant")))
	g.Expect(first.Identity.ImpersonatorUsername).To(Equal(username("admin")))
	g.Expect(first.Identity.ImpersonatorUID).To(Equal(uidOf(t, ns, "admin")))
	events := newFakeController(t)
	g.Expect(o.Watch(t.Context(), key("far"),
		clustercache.NewWatcher(events.watch("content", &corev1.ConfigMap{}, ns)))).To(Succeed())
	createConfigMaps(t, ns, "one")
	g.Eventually(events.seen).WithTimeout(patience).Should(ContainElement("create one"))
	bound := o.For(t.Context(), far)
	_, err := bound.GetClient(t.Context())
	g.Expect(err).NotTo(HaveOccurred())

	takenUp := series(t)["latchkey_rotations_total result=TakenUp"]
	setKubeconfig(t, ns, "far", kubeconfig("admin"))
	g.Eventually(func() float64 { return series(t)["latchkey_rotations_total result=TakenUp"] }).WithTimeout(patience).
		Should(Equal(takenUp + 1))
	g.Expect(o.state("far").Epoch).To(Equal(first.Epoch), "the same user: the connection continues")

	setKubeconfig(t, ns, "far", kubeconfig("deputy"))
	second := o.waitFor(t, "far", func(s clustercache.ConnectionState) bool {
		return s.Phase == clustercache.PhaseConnected && s.Epoch > first.Epoch
	})
	g.Expect(second.Identity.Username).To(Equal(username("tenant")))
	g.Expect(second.Identity.ImpersonatorUsername).To(Equal(username("deputy")))

	now := setAccount(t, ns, "far", "other")
	o.waitFor(t, "far", func(s clustercache.ConnectionState) bool { return s.Identity.Username == username("other") })
	_, err = bound.GetClient(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("Stale")), "the object as it was read names another ServiceAccount")
	connected, err := o.For(t.Context(), now).GetUncachedClient(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(connected.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))).To(Succeed())

	setAccount(t, ns, "far", "refused")
	g.Expect(o.waitReason(t, "far", clustercache.ReasonNotAllowed).Message).To(ContainSubstring("not this one"))
	setAccount(t, ns, "far", "no-permission")
	g.Expect(o.waitReason(t, "far", clustercache.ReasonUnauthorized).Message).To(And(
		ContainSubstring(username("deputy")+", the user of the kubeconfig, needs impersonate on serviceaccounts"),
		ContainSubstring(username("no-permission"))))

	own, asked := 0, 0
	for _, event := range auditLog(t, begin) {
		if !strings.HasSuffix(event.UserAgent, " extension/far") || event.Stage == "RequestReceived" ||
			event.ResponseStatus.Code == http.StatusForbidden && event.ObjectRef.Resource == "selfsubjectreviews" {
			continue
		}
		switch {
		case event.ImpersonatedUser != nil && event.ImpersonatedUser.Username != "":
			asked++
		case event.ObjectRef.Resource == "selfsubjectreviews":
			own++
		default:
			t.Errorf("a request as the kubeconfig's own user: %s", event)
		}
	}
	g.Expect(own).To(BeNumerically(">=", 4), "two connects and two newer kubeconfigs")
	g.Expect(asked).To(BeNumerically(">=", 6))
	events.close()
}

// TestRemoteImpersonationIsStripped checks a proxy that removes the impersonation: every request
// would be the own user's, so nothing connects.
func TestRemoteImpersonationIsStripped(t *testing.T) {
	ns := namespace(t)
	impersonators(t, ns, "admin")
	create(t, serviceAccount(ns, "tenant"))
	grantOperatorSecrets(t, ns, "far")
	p := newReverseProxy(t, true, "Impersonate-User")
	config := p.config(token(t, ns, "admin"))
	create(t, kubeconfigSecret(ns, "far", kubeconfigOf(t, clientcmdapi.AuthInfo{Token: config.BearerToken},
		func(server *clientcmdapi.Cluster) {
			server.Server, server.CertificateAuthorityData = config.Host, config.CAData
			server.TLSServerName = config.ServerName
		})))
	far := extension(ns, "tenant")
	far.SetName("far")
	create(t, far)
	o := startOperator(t, impersonating(ns))
	o.also = append(o.also, func() { utilnet.CloseIdleConnectionsFor(p.transport) })
	NewWithT(t).Expect(o.waitReason(t, "far", clustercache.ReasonIdentityMismatch).Message).To(And(
		ContainSubstring("got system:serviceaccount:"+ns+":admin"),
		ContainSubstring("want system:serviceaccount:"+ns+":tenant")))
}
