package stateapi

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
)

// The API server trusts the server by the certificate authority in the APIService, and says why if
// it does not.
func TestAvailable(t *testing.T) {
	s := newServed(t)
	s.allow(t)
	s.run(t, s.store)
	other, err := certs.NewAuthority("other")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	s.apply(t, other.PEM())
	eventually(t, func() string { return availability(t) }).
		Should(And(ContainSubstring(`"status":"False"`), ContainSubstring("certificate signed by unknown authority")))
	kubectl(t, "patch", "apiservice", apiService, "--type=merge", "-p", patchOf(s.authority.PEM()))
	eventually(t, func() string { return availability(t) }).Should(ContainSubstring(`"status":"True"`))
	eventually(t, func() error { _, err := cp.Kubectl(t.Context(), "get", "reservations", "-A"); return err }).
		Should(Succeed())
}

// A server that cannot learn how the API server authenticates does not start.
func TestMayNotReadAuthentication(t *testing.T) {
	s := newServed(t)
	s.run(t, s.store)
	eventually(t, s.ended).Should(BeClosed())
	g := NewWithT(t)
	g.Expect(s.err).To(MatchError(And(ContainSubstring("ConfigMap kube-system/extension-apiserver-authentication"),
		ContainSubstring("forbidden"), ContainSubstring("extension-apiserver-authentication-reader"))))
}

// direct sends requests to the server itself, past the API server.
func (s *served) direct(t *testing.T, certificates ...tls.Certificate) func(header http.Header) string {
	t.Helper()
	return s.directTo(t, "/apis/rooms.example.com/v1alpha1/reservations", certificates...)
}

// directTo is direct for a path.
func (s *served) directTo(t *testing.T, path string, certificates ...tls.Certificate) func(header http.Header) string {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.authority.PEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs:      roots,
		Certificates: certificates,
		MinVersion:   tls.VersionTLS12,
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return func(header http.Header) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url(path), nil)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		req.Header = header
		resp, err := (&http.Client{Transport: transport}).Do(req)
		return status(resp, err)
	}
}

// Only the API server's own certificate makes its headers count, also after that certificate and
// its authority are replaced.
func TestFrontProxy(t *testing.T) {
	g := NewWithT(t)
	s := serve(t)
	master := http.Header{"X-Remote-User": {"root"}, "X-Remote-Group": {"system:masters"}}
	g.Expect(s.direct(t)(master)).To(Equal("401"), "no certificate")
	g.Expect(s.direct(t)(http.Header{})).To(Equal("401"), "no credential")
	other, err := certs.NewAuthority("front-proxy-ca")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.direct(t, pair(t, other, controlplane.FrontProxyName))(master)).To(Equal("401"), "another authority")
	g.Expect(s.direct(t)(http.Header{"Authorization": {"Bearer bad"}})).To(Equal("401"))
	front := func(name string) tls.Certificate {
		certificate, err := cp.FrontProxyCertificate(name)
		g.Expect(err).NotTo(HaveOccurred())
		return certificate
	}
	g.Expect(s.direct(t, front("other-name"))(master)).To(Equal("401"), "a name that the API server does not list")
	earlier := front(controlplane.FrontProxyName)
	g.Expect(s.direct(t, earlier)(master)).To(Equal("200"), "the headers count with the API server's certificate")
	g.Expect(s.direct(t, earlier)(http.Header{"X-Remote-User": {"stranger"}})).To(Equal("403"), "as that user")

	eventually(t, func() error { _, err := cp.Kubectl(t.Context(), "get", "reservations", "-A"); return err }).
		Should(Succeed())
	g.Expect(cp.RotateFrontProxy()).To(Succeed())
	g.Expect(cp.KillAPIServer(t.Context())).To(Succeed())
	g.Expect(cp.StartAPIServer(t.Context())).To(Succeed())
	eventually(t, func() error { _, err := cp.Kubectl(t.Context(), "get", "reservations", "-A"); return err }).
		WithTimeout(2 * time.Minute).Should(Succeed())
	g.Expect(s.direct(t, front(controlplane.FrontProxyName))(master)).To(Equal("200"))
	select {
	case <-s.ended:
		t.Fatal("the server ended:", s.err)
	default:
	}
}

func pair(t *testing.T, authority *certs.Authority, name string) tls.Certificate {
	certificate, key, err := authority.Issue(certs.Request{CommonName: name, ValidFor: time.Hour})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	pair, err := tls.X509KeyPair(certificate, key)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return pair
}

// Users have the rights that RBAC gives them, whatever headers they send.
func TestUsers(t *testing.T) {
	g := NewWithT(t)
	s := serve(t)
	create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "rooms", Name: "guest"}})
	clients := clientset(t)
	token, err := clients.CoreV1().ServiceAccounts("rooms").CreateToken(t.Context(), "guest",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	bearer := http.Header{"Authorization": {"Bearer " + token.Status.Token}}
	g.Expect(s.direct(t)(bearer)).To(Equal("403"), "a token authenticates")

	viewer, err := cp.UserConfig("viewer")
	g.Expect(err).NotTo(HaveOccurred())
	viewer.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			req.Header.Set("X-Remote-User", "root")
			req.Header.Set("X-Remote-Group", "system:masters")
			return next.RoundTrip(req)
		})
	})
	get := func(config *rest.Config) string {
		httpClient, err := rest.HTTPClientFor(config)
		g.Expect(err).NotTo(HaveOccurred())
		defer httpClient.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			strings.TrimSuffix(config.Host, "/")+"/apis/rooms.example.com/v1alpha1/namespaces/rooms/reservations", nil)
		g.Expect(err).NotTo(HaveOccurred())
		resp, err := httpClient.Do(req)
		return body(t, resp, err)
	}
	g.Expect(get(viewer)).To(And(ContainSubstring(`"code":403`), ContainSubstring(`User \"viewer\" cannot list`)))
	create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: "rooms", Name: "viewer"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"rooms.example.com"}, Resources: []string{"reservations"}, Verbs: []string{"list"}}},
	})
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "rooms", Name: "viewer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "viewer"},
		Subjects: []rbacv1.Subject{
			{Kind: "User", APIGroup: rbacv1.GroupName, Name: "viewer"},
			{Kind: "ServiceAccount", Namespace: "rooms", Name: "guest"}},
	})
	eventually(t, func() string { return get(viewer) }).Should(ContainSubstring(`"items":[]`))
	inRooms := s.directTo(t, "/apis/rooms.example.com/v1alpha1/namespaces/rooms/reservations")
	eventually(t, func() string { return inRooms(bearer) }).Should(Equal("200"), "the token is that of the guest")
	g.Expect(s.direct(t)(bearer)).To(Equal("403"), "not in all namespaces")
}

// A namespace can be deleted while the server runs. Without a server it cannot, until the
// APIService is gone: so that goes first.
func TestNamespaceDeletion(t *testing.T) {
	g := NewWithT(t)
	namespace := func(name string) *corev1.Namespace {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		create(t, ns)
		return ns
	}
	gone := func(ns *corev1.Namespace) func() error {
		return func() error { return admin.Get(t.Context(), client.ObjectKeyFromObject(ns), &corev1.Namespace{}) }
	}
	s := serve(t)
	first, second := namespace("first"), namespace("second")
	s.reserveIn("first", "a", "blue")
	g.Expect(admin.Delete(t.Context(), first)).To(Succeed())
	eventually(t, gone(first)).Should(MatchError(ContainSubstring("not found")))
	g.Expect(kubectl(t, "get", "reservations", "-n", "first")).To(BeEmpty(), "deleted with its namespace")

	s.stop()
	eventually(t, func() string { return availability(t) }).Should(ContainSubstring(`"status":"False"`))
	g.Expect(admin.Delete(t.Context(), second)).To(Succeed())
	eventually(t, func() string {
		return tryKubectl(t, "get", "namespace", "second", "-o", "jsonpath={.status.conditions}")
	}).Should(And(ContainSubstring("DiscoveryFailed"), ContainSubstring("rooms.example.com/v1alpha1")))
	kubectl(t, "delete", "apiservice", apiService)
	eventually(t, gone(second)).WithTimeout(2 * time.Minute).Should(MatchError(ContainSubstring("not found")))
}
