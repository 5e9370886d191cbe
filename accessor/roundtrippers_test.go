package accessor

import (
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/credential"
)

// neverUsed is a credential that nothing may be sent with.
type neverUsed struct {
	credential.Credential
	t *testing.T
}

func (n neverUsed) RoundTripper(http.RoundTripper) http.RoundTripper {
	n.t.Error("the credential was used")
	return failingRoundTripper{}
}

// A request for another server, or another virtual host of this one, gets no token to begin with.
func TestNoCredentialForOtherHosts(t *testing.T) {
	g := NewWithT(t)
	var all targets.Set
	joined, err := all.Join(&rest.Config{Host: "https://here:6443"}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	defer joined.Leave()
	conn := &connection{}
	conn.credential.Store(&boundCredential{cred: neverUsed{t: t}, target: joined.Target})
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
