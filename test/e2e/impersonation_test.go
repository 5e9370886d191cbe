package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// mayImpersonate grants the host operator permission to impersonate the given ServiceAccounts of a
// namespace.
func mayImpersonate(t *testing.T, namespace string, names ...string) {
	t.Helper()
	name := "may-impersonate"
	role := &rbacv1.Role{
		Rules: []rbacv1.PolicyRule{
			{
				APIGroups:     []string{""},
				Resources:     []string{"serviceaccounts"},
				ResourceNames: names,
				Verbs:         []string{"impersonate"},
			},
		},
	}
	role.Namespace, role.Name = namespace, name
	create(t, role)
	create(t, roleBinding(namespace, name, rbacv1.Subject{Kind: "User", Name: operatorUser}))
}

// TestImpersonation checks connections that use the host operator's own credential and the name of
// a ServiceAccount. The host operator requests no token, and the API server adds the groups. The
// watch of ServiceAccounts shows whether the ServiceAccount exists.
func TestImpersonation(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	ns := namespace(t)
	tenant(t, ns, "worn")
	tenant(t, ns, "not-allowed")
	mayImpersonate(t, ns, "worn", "absent")
	create(t, extension(ns, "absent"))
	o := startOperator(t, clustercache.Options{
		Credentials:    credential.Impersonation(credential.ImpersonationOptions{}),
		AllowIdentity:  clustercache.GuardedByAdmission,
		ConnectBackoff: never(),
	})

	before := o.waitConnected(t, "worn")
	username := "system:serviceaccount:" + ns + ":worn"
	g.Expect(before.Identity.Username).To(Equal(username))
	g.Expect(before.Identity.UID).To(Equal(uidOf(t, ns, "worn")), "from the watch of ServiceAccounts")
	g.Expect(before.Identity.Groups).To(ContainElements("system:serviceaccounts", "system:serviceaccounts:"+ns))
	g.Expect(before.TokenExpires).To(BeZero())
	absent := o.waitReason(t, "absent", clustercache.ReasonServiceAccountNotFound)
	g.Expect(absent.Message).To(ContainSubstring(ns + "/absent"))
	g.Expect(absent.Source).To(Equal("serviceaccount "+ns+"/absent"), "also if the ServiceAccount does not exist")
	g.Expect(o.waitReason(t, "not-allowed", clustercache.ReasonUnauthorized).Message).
		To(And(ContainSubstring(`cannot impersonate resource "serviceaccounts"`),
			ContainSubstring("needs impersonate on serviceaccount "+ns+
				"/not-allowed (a rule {")))

	h := handlesOf(t, o, "worn")
	for action, use := range h.uses(t, ns) {
		g.Eventually(use).WithTimeout(patience).Should(Succeed(), action)
	}
	c := newFakeController(t)
	g.Expect(o.Watch(t.Context(), key("worn"), clustercache.NewWatcher(c.watch("content", &corev1.ConfigMap{}, ns)))).
		To(Succeed())
	create(t, configMap(ns, "one"))
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create one"))
	// No header that a caller sets changes the identity to another user or to the host operator.
	plain := httpClientFor(t, h.config)
	for header, value := range map[string]string{"Impersonate-User": "system:admin",
		"Impersonate-Group": "system:masters", "Authorization": "Bearer x"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			strings.TrimSuffix(h.config.Host, "/")+"/api/v1/namespaces/"+ns+"/configmaps", nil)
		g.Expect(err).NotTo(HaveOccurred())
		req.Header.Set(header, value)
		resp, err := plain.Do(req)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resp.Body.Close()).To(Succeed())
		g.Expect(resp.StatusCode).To(Equal(http.StatusOK), header)
	}
	// A client that dials its own connections would need the host operator's certificate.
	transport, upgrader, err := spdy.RoundTripperFor(h.config)
	g.Expect(err).NotTo(HaveOccurred())
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		strings.TrimSuffix(h.config.Host, "/")+"/api/v1/namespaces/"+ns+"/pods/x/exec", nil)
	g.Expect(err).NotTo(HaveOccurred())
	_, _, err = spdy.Negotiate(upgrader, &http.Client{Transport: transport}, req, "v4.channel.k8s.io")
	g.Expect(err).To(MatchError(ContainSubstring("use a credential with a token")))

	// Impersonation would continue without the ServiceAccount: the API server does not check that
	// the ServiceAccount exists.
	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "worn"))).To(Succeed())
	o.waitReason(t, "worn", clustercache.ReasonServiceAccountNotFound)
	disconnectTime := time.Now()
	h.expectDead(t, ns, clustercache.ReasonServiceAccountNotFound)
	for _, event := range auditLog(t, disconnectTime) {
		g.Expect(event.UserAgent).NotTo(HaveSuffix(" extension/worn"), event.String())
	}
	create(t, serviceAccount(ns, "worn"))
	after := o.waitConnected(t, "worn")
	g.Expect(after.Epoch).To(Equal(before.Epoch + 1))
	g.Expect(after.Identity.UID).To(Equal(uidOf(t, ns, "worn")))
	g.Eventually(func() error {
		fresh, err := o.GetUncachedClient(t.Context(), key("worn"))
		if err != nil {
			return err
		}
		return fresh.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))
	}).WithTimeout(patience).Should(Succeed())

	served := 0
	for _, event := range auditLog(t, begin) {
		_, name, isConnection := strings.Cut(event.UserAgent, userAgent+" extension/")
		switch {
		case event.what() == "create serviceaccounts/token" && event.User.Username == operatorUser:
			t.Errorf("the host operator requested a token: %s", event)
		case isConnection && event.User.Username != operatorUser:
			t.Errorf("request by a user other than the host operator: %s", event)
		// before the API server knows the impersonated user, or denies the impersonation
		case event.Stage == "RequestReceived" || event.ResponseStatus.Code == http.StatusForbidden:
		case isConnection &&
			(event.ImpersonatedUser == nil || event.ImpersonatedUser.Username != "system:serviceaccount:"+ns+":"+name):
			t.Errorf("request does not impersonate the ServiceAccount: %s", event)
		case isConnection:
			served++
		}
	}
	g.Expect(served).To(BeNumerically(">", 10))
	c.close()
}

// TestImpersonationThatIsRevoked checks that the revocation of permission to impersonate ends the
// connection. From then on the API server denies every request, and the error states the reason.
func TestImpersonationThatIsRevoked(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "worn")
	tenant(t, ns, "bystander")
	mayImpersonate(t, ns, "worn")
	other := &rbacv1.Role{
		Rules: []rbacv1.PolicyRule{
			{
				APIGroups:     []string{""},
				Resources:     []string{"serviceaccounts"},
				ResourceNames: []string{"bystander"},
				Verbs:         []string{"impersonate"},
			},
		},
	}
	other.Namespace, other.Name = ns, "may-impersonate-another"
	create(t, other)
	create(t, roleBinding(ns, other.Name, rbacv1.Subject{Kind: "User", Name: operatorUser}))
	o := startOperator(t,
		clustercache.Options{
			Credentials:   credential.Impersonation(credential.ImpersonationOptions{}),
			AllowIdentity: clustercache.GuardedByAdmission,
		})
	o.waitConnected(t, "worn")
	bystander := o.waitConnected(t, "bystander")
	h := handlesOf(t, o, "worn")
	g.Expect(admin.Delete(t.Context(), roleBinding(ns, "may-impersonate"))).To(Succeed())
	g.Expect(o.waitReason(t, "worn", clustercache.ReasonUnauthorized).Message).To(ContainSubstring("cannot impersonate"))
	h.expectDead(t, ns, clustercache.ReasonUnauthorized)
	g.Expect(o.state("bystander").Since).To(Equal(bystander.Since))
	create(t, roleBinding(ns, "may-impersonate", rbacv1.Subject{Kind: "User", Name: operatorUser}))
	o.waitConnected(t, "worn")
}

// TestImpersonationWithUID checks that the option UID adds the UID to the requests. The audit log
// records the UID.
func TestImpersonationWithUID(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	ns := namespace(t)
	tenant(t, ns, "whole")
	mayImpersonate(t, ns, "whole")
	role := &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"uids"}, Verbs: []string{"impersonate"}},
		{APIGroups: []string{""}, Resources: []string{"groups"}, Verbs: []string{"impersonate"}},
	}}
	role.Name = "may-impersonate-uids"
	create(t, role)
	create(t,
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects:   []rbacv1.Subject{{Kind: "User", Name: operatorUser}},
		})
	o := startOperator(t,
		clustercache.Options{
			Credentials: credential.Impersonation(credential.ImpersonationOptions{
				UID:    true,
				Groups: true,
			}),
			AllowIdentity: clustercache.GuardedByAdmission,
		})
	state := o.waitConnected(t, "whole")
	g.Expect(state.Identity.UID).To(Equal(uidOf(t, ns, "whole")))
	g.Expect(state.Identity.Groups).To(ContainElement("system:serviceaccounts:" + ns))
	found := false
	for _, event := range auditLog(t, begin) {
		if strings.HasSuffix(event.UserAgent, " extension/whole") && event.ImpersonatedUser != nil &&
			event.ImpersonatedUser.UID == string(state.Identity.UID) {
			found = true
		}
	}
	g.Expect(found).To(BeTrue())
}

// TestConstrainedImpersonation checks constrained impersonation, which limits the user and also the
// requests. As the ServiceAccount, the host operator may create self-subject reviews and read
// ConfigMaps, and nothing else. This holds even if the ServiceAccount itself has more permissions.
func TestConstrainedImpersonation(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "constrained")
	role := &rbacv1.Role{Rules: []rbacv1.PolicyRule{
		{
			APIGroups:     []string{"authentication.k8s.io"},
			Resources:     []string{"serviceaccounts"},
			ResourceNames: []string{"constrained"},
			Verbs:         []string{"impersonate:serviceaccount"},
		},
		{
			APIGroups: []string{""},
			Resources: []string{"configmaps"},
			Verbs:     []string{"impersonate-on:serviceaccount:list", "impersonate-on:serviceaccount:watch"},
		},
	}}
	role.Namespace, role.Name = ns, "constrained-impersonation"
	create(t, role)
	create(t, roleBinding(ns, role.Name, rbacv1.Subject{Kind: "User", Name: operatorUser}))
	reviews := &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{
		{
			APIGroups: []string{"authentication.k8s.io"},
			Resources: []string{"selfsubjectreviews"},
			Verbs:     []string{"impersonate-on:serviceaccount:create"},
		},
		{
			NonResourceURLs: []string{"/api", "/api/*", "/apis", "/apis/*"},
			Verbs:           []string{"impersonate-on:serviceaccount:get"},
		},
	}}
	reviews.Name = role.Name
	create(t, reviews)
	create(t,
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects:   []rbacv1.Subject{{Kind: "User", Name: operatorUser}},
		})
	o := startOperator(t,
		clustercache.Options{
			Credentials:   credential.Impersonation(credential.ImpersonationOptions{}),
			AllowIdentity: clustercache.GuardedByAdmission,
		})
	o.waitConnected(t, "constrained")
	h := handlesOf(t, o, "constrained")
	g.Eventually(func() error { return h.client.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns)) }).
		WithTimeout(patience).Should(Succeed())
	g.Expect(h.live.List(t.Context(), &corev1.SecretList{}, client.InNamespace(ns))).
		To(Satisfy(isForbidden), "the ServiceAccount has permission, but the operator may not use it")
}
