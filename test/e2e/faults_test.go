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

	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// faults is a server that forwards requests to the real API server. A test can make faults answer a
// request itself.
type faults struct {
	*httptest.Server
	answer atomic.Pointer[func(*http.Request) int]
	quiet  func() // closes the TCP connections of both sides
	// pass forwards a request, if it is set; it receives what does so otherwise.
	pass atomic.Pointer[func(http.ResponseWriter, *http.Request, http.Handler)]

	mu      sync.Mutex
	refused map[string]bool // guarded by mu; values of Authorization
	seen    map[string]bool // guarded by mu; values of Authorization
}

func newFaults(t *testing.T) *faults {
	t.Helper()
	g := NewWithT(t)
	target, err := url.Parse(cp.Config().Host)
	g.Expect(err).NotTo(HaveOccurred())
	tlsConfig, err := rest.TLSConfigFor(rest.AnonymousClientConfig(cp.Config()))
	g.Expect(err).NotTo(HaveOccurred())
	transport := &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	// Connection upgrades need HTTP/1.1.
	upgrades := &http.Transport{
		TLSClientConfig: tlsConfig.Clone(),
		TLSNextProto:    map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
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
		if pass := f.pass.Load(); pass != nil {
			(*pass)(w, req, proxy)
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

// status returns the HTTP status to answer with, or 0 to forward the request.
func (f *faults) status(req *http.Request) int {
	authorization := req.Header.Get("Authorization")
	f.mu.Lock()
	f.seen[authorization] = true
	isRefused := f.refused[authorization]
	f.mu.Unlock()
	if isRefused {
		return http.StatusUnauthorized
	}
	if answer := f.answer.Load(); answer != nil {
		return (*answer)(req)
	}
	return 0
}

// revoke makes faults refuse every credential that faults received so far, except the given tokens.
func (f *faults) revoke(validTokens ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for authorization := range f.seen {
		f.refused[authorization] = true
	}
	for _, token := range validTokens {
		delete(f.refused, "Bearer "+token)
	}
}

// operatorConfig returns the config and the token of a host operator that reaches the API server
// through f.
func (f *faults) operatorConfig(t *testing.T) (*rest.Config, string) {
	t.Helper()
	ns := namespace(t)
	create(t, serviceAccount(ns, "operator"))
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "operator-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "latchkey-operator"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "operator"}},
	})
	operatorToken := token(t, ns, "operator")
	return &rest.Config{
		Host:            f.URL,
		BearerToken:     operatorToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: f.authorities()},
	}, operatorToken
}

func (f *faults) authorities() []byte { return pemOf(f.Certificate()) }

func pemOf(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}

// isPost reports whether the request creates an object of that resource, directly in a namespace.
func isPost(req *http.Request, resource string) bool {
	return req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/"+resource)
}
