package connection

import (
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// unusableCredential is a credential that fails the test if a request uses it.
type unusableCredential struct {
	identity.Credential
	t *testing.T
}

func (n unusableCredential) RoundTripper(http.RoundTripper) http.RoundTripper {
	n.t.Error("the credential was used")
	return failingRoundTripper{}
}

// A request for another server, or for another virtual host of the same server, fails before the
// token is added.
func TestNoCredentialForOtherHosts(t *testing.T) {
	g := NewWithT(t)
	var all targets.Set
	membership, err := all.Join(&rest.Config{Host: "https://here:6443"}, nil, &targets.Policy{})
	g.Expect(err).NotTo(HaveOccurred())
	defer membership.Leave()
	conn := &Connection{}
	conn.credential.Store(&Credential{Credential: unusableCredential{t: t}, target: membership.Target})
	for url, host := range map[string]string{
		"https://here:6443/api":  "there:6443",
		"https://here:6443/apis": "here",
		"https://there:6443/":    "",
		"http://here:6443/":      "",
	} {
		req := httptest.NewRequest(http.MethodGet, url, nil)
		req.Host = host
		_, err := (&identityRoundTripper{conn: conn}).RoundTrip(req)
		g.Expect(err).To(MatchError(ContainSubstring("is not sent: this connection is for https://here:6443")), url)
	}
	for what, change := range map[string]func(*http.Request){
		"an opaque URL":            func(req *http.Request) { req.URL.Opaque = "//there/api" },
		"another opaque URL":       func(req *http.Request) { req.URL.Opaque = "/api/v1/namespaces/n/services/s/proxy" },
		"a URL in place of a path": func(req *http.Request) { req.URL.Path = "https://there/api" },
		"no path":                  func(req *http.Request) { req.URL.Path = "api" },
		"a tunnel":                 func(req *http.Request) { req.Method = http.MethodConnect },
	} {
		req := httptest.NewRequest(http.MethodGet, "https://here:6443/api", nil)
		req.Host = ""
		change(req)
		_, err := (&identityRoundTripper{conn: conn}).RoundTrip(req)
		g.Expect(err).To(MatchError(ContainSubstring("is not sent: this connection is for paths of https://here:6443")),
			what)
	}
}
