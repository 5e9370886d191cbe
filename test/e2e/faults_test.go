package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/testutil"
)

// faults is an API server that passes requests on to the real one, except where a test has it
// answer by itself.
type faults struct {
	*httptest.Server
	answer atomic.Pointer[func(*http.Request) int]
	quiet  func() // closes the TCP connections of both sides

	mu      sync.Mutex
	refused map[string]bool // guarded by mu; values of Authorization
	seen    map[string]bool // guarded by mu; values of Authorization
}

func newFaults(t *testing.T) *faults {
	t.Helper()
	g := NewWithT(t)
	to, err := url.Parse(cp.Config().Host)
	g.Expect(err).NotTo(HaveOccurred())
	tlsConfig, err := rest.TLSConfigFor(rest.AnonymousClientConfig(cp.Config()))
	g.Expect(err).NotTo(HaveOccurred())
	transport := &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	// Upgrades are HTTP/1.1's.
	upgrades := &http.Transport{TLSClientConfig: tlsConfig.Clone(),
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			if req.Header.Get("Upgrade") != "" {
				return upgrades.RoundTrip(req)
			}
			return transport.RoundTrip(req)
		}),
		FlushInterval: -1, // for watches
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	f := &faults{refused: map[string]bool{}, seen: map[string]bool{}}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if status := f.status(req); status != 0 {
			w.WriteHeader(status)
			return
		}
		proxy.ServeHTTP(w, req)
	}))
	f.EnableHTTP2 = true
	f.StartTLS()
	f.quiet = func() {
		f.CloseClientConnections()
		transport.CloseIdleConnections()
		upgrades.CloseIdleConnections()
	}
	t.Cleanup(func() {
		f.quiet()
		f.Close()
	})
	return f
}

// status is what to answer, 0 to pass the request on.
func (f *faults) status(req *http.Request) int {
	authorization := req.Header.Get("Authorization")
	f.mu.Lock()
	f.seen[authorization] = true
	refused := f.refused[authorization]
	f.mu.Unlock()
	if refused {
		return http.StatusUnauthorized
	}
	if answer := f.answer.Load(); answer != nil {
		return (*answer)(req)
	}
	return 0
}

// revoke refuses every credential of the tenants that was seen so far.
func (f *faults) revoke(except ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for authorization := range f.seen {
		f.refused[authorization] = true
	}
	for _, token := range except {
		delete(f.refused, "Bearer "+token)
	}
}

// operatorConfig is that of a host operator which reaches the API server through f, and its token.
func (f *faults) operatorConfig(t *testing.T) (*rest.Config, string) {
	t.Helper()
	ns := namespace(t)
	create(t, serviceAccount(ns, "operator"))
	create(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: "operator-"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "latchkey-operator"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "operator"}}})
	own := token(t, ns, "operator")
	return &rest.Config{Host: f.URL, BearerToken: own, TLSClientConfig: rest.TLSClientConfig{CAData: f.authorities()}},
		own
}

func (f *faults) authorities() []byte { return pemOf(f.Certificate()) }

func pemOf(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}

// isPost reports whether the request creates an object of that resource, directly in a namespace.
func isPost(req *http.Request, resource string) bool {
	return req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/"+resource)
}
