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

// mayImpersonate lets the host operator act as ServiceAccounts of a namespace.
func mayImpersonate(t *testing.T, namespace string, names ...string) {
	t.Helper()
	name := "may-impersonate"
	role := &rbacv1.Role{
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, ResourceNames: names,
				Verbs: []string{"impersonate"}},
		},
	}
	role.Namespace, role.Name = namespace, name
	create(t, role)
	create(t, roleBinding(namespace, name, rbacv1.Subject{Kind: "User", Name: operatorUser}))
}

// The host operator's own credential, and the name of a ServiceAccount: no token is asked for, the
// API server adds the groups, and whether the ServiceAccount is there is known from its watch.
func TestImpersonation(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	ns := namespace(t)
	tenant(t, ns, "worn")
	tenant(t, ns, "not-allowed")
	mayImpersonate(t, ns, "worn", "absent")
	create(t, extension(ns, "absent"))
	o := startOperator(t, clustercache.Options{Credentials: credential.Impersonation(credential.ImpersonationOptions{}),
		AllowIdentity: clustercache.GuardedByAdmission, ConnectBackoff: never()})

	before := o.waitConnected(t, "worn")
	username := "system:serviceaccount:" + ns + ":worn"
	g.Expect(before.Identity.Username).To(Equal(username))
	g.Expect(before.Identity.UID).To(Equal(uidOf(t, ns, "worn")), "from the watch of ServiceAccounts")
	g.Expect(before.Identity.Groups).To(ContainElements("system:serviceaccounts", "system:serviceaccounts:"+ns))
	g.Expect(before.TokenExpires).To(BeZero())
	absent := o.waitReason(t, "absent", clustercache.ServiceAccountNotFound)
	g.Expect(absent.Message).To(ContainSubstring(ns + "/absent"))
	g.Expect(absent.Source).To(Equal("serviceaccount "+ns+"/absent"), "also where there is none")
	g.Expect(o.waitReason(t, "not-allowed", clustercache.Unauthorized).Message).
		To(And(ContainSubstring(`cannot impersonate resource "serviceaccounts"`),
			ContainSubstring("needs impersonate on serviceaccount "+ns+
				"/not-allowed (config/rbac-examples/impersonation.yaml)")))

	h := handlesOf(t, o, "worn")
	for what, use := range h.uses(t, ns) {
		g.Eventually(use).WithTimeout(patience).Should(Succeed(), what)
	}
	c := newFakeController(t)
	g.Expect(o.Watch(t.Context(), key("worn"), clustercache.NewWatcher(c.watch("content", &corev1.ConfigMap{}, ns)))).
		To(Succeed())
	create(t, configMap(ns, "one"))
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create one"))
	// Nothing that a caller sets makes it somebody else, or the host operator.
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
	// What dials by itself would need the host operator's certificate.
	transport, upgrader, err := spdy.RoundTripperFor(h.config)
	g.Expect(err).NotTo(HaveOccurred())
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		strings.TrimSuffix(h.config.Host, "/")+"/api/v1/namespaces/"+ns+"/pods/x/exec", nil)
	g.Expect(err).NotTo(HaveOccurred())
	_, _, err = spdy.Negotiate(upgrader, &http.Client{Transport: transport}, req, "v4.channel.k8s.io")
	g.Expect(err).To(MatchError(ContainSubstring("use credentials with a token")))

	// Impersonation would go on without the ServiceAccount: the API server does not look.
	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "worn"))).To(Succeed())
	o.waitReason(t, "worn", clustercache.ServiceAccountNotFound)
	gone := time.Now()
	h.expectDead(t, ns, clustercache.ServiceAccountNotFound)
	for _, event := range auditLog(t, gone) {
		g.Expect(event.UserAgent).NotTo(HaveSuffix(" extension/worn"), event.String())
	}
	create(t, serviceAccount(ns, "worn"))
	after := o.waitConnected(t, "worn")
	g.Expect(after.Generation).To(Equal(before.Generation + 1))
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
		_, name, ofConnection := strings.Cut(event.UserAgent, userAgent+" extension/")
		switch {
		case event.what() == "create serviceaccounts/token" && event.User.Username == operatorUser:
			t.Errorf("a token was asked for: %s", event)
		case ofConnection && event.User.Username != operatorUser:
			t.Errorf("not by impersonation: %s", event)
		// before it is known, or because it may not be
		case event.Stage == "RequestReceived" || event.ResponseStatus.Code == http.StatusForbidden:
		case ofConnection &&
			(event.ImpersonatedUser == nil || event.ImpersonatedUser.Username != "system:serviceaccount:"+ns+":"+name):
			t.Errorf("as somebody else: %s", event)
		case ofConnection:
			served++
		}
	}
	g.Expect(served).To(BeNumerically(">", 10))
	c.close()
}

// Whoever takes the right away ends the connection: the API server denies everything from then on,
// and says so.
func TestImpersonationThatIsRevoked(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "worn")
	tenant(t, ns, "bystander")
	mayImpersonate(t, ns, "worn")
	other := &rbacv1.Role{
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, ResourceNames: []string{"bystander"},
				Verbs: []string{"impersonate"}},
		},
	}
	other.Namespace, other.Name = ns, "may-impersonate-another"
	create(t, other)
	create(t, roleBinding(ns, other.Name, rbacv1.Subject{Kind: "User", Name: operatorUser}))
	o := startOperator(t,
		clustercache.Options{Credentials: credential.Impersonation(credential.ImpersonationOptions{}),
			AllowIdentity: clustercache.GuardedByAdmission})
	o.waitConnected(t, "worn")
	bystander := o.waitConnected(t, "bystander")
	h := handlesOf(t, o, "worn")
	g.Expect(admin.Delete(t.Context(), roleBinding(ns, "may-impersonate"))).To(Succeed())
	g.Expect(o.waitReason(t, "worn", clustercache.Unauthorized).Message).To(ContainSubstring("cannot impersonate"))
	h.expectDead(t, ns, clustercache.Unauthorized)
	g.Expect(o.state("bystander").Since).To(Equal(bystander.Since))
	create(t, roleBinding(ns, "may-impersonate", rbacv1.Subject{Kind: "User", Name: operatorUser}))
	o.waitConnected(t, "worn")
}

// By option the UID goes along, and the audit log has it.
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
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: operatorUser}}})
	o := startOperator(t,
		clustercache.Options{
			Credentials: credential.Impersonation(credential.ImpersonationOptions{
				UID: true, Groups: true,
			}), AllowIdentity: clustercache.GuardedByAdmission,
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

// Constrained impersonation says not only as whom but for what: the host operator may review itself
// and read ConfigMaps as the ServiceAccount, and nothing else, whatever the ServiceAccount itself
// may do.
func TestConstrainedImpersonation(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "constrained")
	role := &rbacv1.Role{Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"serviceaccounts"},
			ResourceNames: []string{"constrained"}, Verbs: []string{"impersonate:serviceaccount"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"},
			Verbs: []string{"impersonate-on:serviceaccount:list", "impersonate-on:serviceaccount:watch"}},
	}}
	role.Namespace, role.Name = ns, "constrained-impersonation"
	create(t, role)
	create(t, roleBinding(ns, role.Name, rbacv1.Subject{Kind: "User", Name: operatorUser}))
	reviews := &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"selfsubjectreviews"},
			Verbs: []string{"impersonate-on:serviceaccount:create"}},
		{NonResourceURLs: []string{"/api", "/api/*", "/apis", "/apis/*"},
			Verbs: []string{"impersonate-on:serviceaccount:get"}},
	}}
	reviews.Name = role.Name
	create(t, reviews)
	create(t,
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: operatorUser}}})
	o := startOperator(t,
		clustercache.Options{Credentials: credential.Impersonation(credential.ImpersonationOptions{}),
			AllowIdentity: clustercache.GuardedByAdmission})
	o.waitConnected(t, "constrained")
	h := handlesOf(t, o, "constrained")
	g.Eventually(func() error { return h.client.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns)) }).
		WithTimeout(patience).Should(Succeed())
	g.Expect(h.live.List(t.Context(), &corev1.SecretList{}, client.InNamespace(ns))).
		To(Satisfy(isForbidden), "the ServiceAccount may, the operator for it may not")
}
