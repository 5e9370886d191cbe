package h2

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// Requests go by the proxy, which sees TLS only, and asks for its own user. What a client
// certificate proves, it proves to the server.
func TestProxies(t *testing.T) {
	for _, scheme := range []string{"http", "https", "socks5"} {
		for name, user := range map[string]*url.Userinfo{"": nil, " with a user": url.UserPassword("me", "pass-word")} {
			t.Run(scheme+name, func(t *testing.T) {
				g := NewWithT(t)
				server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					_, _ = fmt.Fprintf(w, "%s %d", req.Header.Get("Authorization"), len(req.TLS.PeerCertificates))
				}))
				server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
				server.EnableHTTP2 = true
				server.StartTLS()
				t.Cleanup(server.Close)
				certificate := proxyCertificate(t)
				var asked int
				var secured *tls.Certificate
				if scheme == "https" {
					secured = &certificate
				}
				proxy := testutil.NewForwardProxy(t, scheme, secured, user)
				roots := x509.NewCertPool()
				roots.AddCert(server.Certificate())
				address, err := url.Parse(server.URL)
				g.Expect(err).NotTo(HaveOccurred())
				transport := New(address, &tls.Config{
					RootCAs:    roots,
					ServerName: "example.com", // of the server, and not of the proxy
					GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
						asked++
						return &certificate, nil
					},
				}, proxy.URL())
				t.Cleanup(transport.Close)
				for range 2 {
					g.Expect(get(t, transport, server.URL)).To(Equal("Bearer top-secret 1"))
				}
				g.Expect(asked).To(Equal(1), "by the server, and not by the proxy")
				g.Expect(proxy.Asked()).To(Equal([]string{address.Host}))
				g.Expect(proxy.Passed()).NotTo(Or(BeEmpty(), ContainSubstring("top-secret"), ContainSubstring("Bearer")))
				g.Expect(proxy.Heads()).NotTo(ContainSubstring("top-secret"))
			})
		}
	}
}

// get sends a request with a secret, and returns the answer.
func get(t *testing.T, transport *Transport, address string) string {
	t.Helper()
	g := NewWithT(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	g.Expect(err).NotTo(HaveOccurred())
	req.Header.Set("Authorization", "Bearer top-secret")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err.Error()
	}
	body, err := io.ReadAll(resp.Body)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resp.Body.Close()).To(Succeed())
	return string(body)
}

// A proxy that cannot be verified, or refuses, carries nothing, and the error has no password.
func TestProxiesThatCarryNothing(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	stranger := &server.TLS.Certificates[0] // of no authority of the system
	wrong := func(p *testutil.ForwardProxy) *url.URL {
		u := p.URL()
		u.User = url.UserPassword("me", "wrong-word")
		return u
	}
	right := url.UserPassword("me", "pass-word")
	for text, proxy := range map[string]*url.URL{
		"TLS handshake with the proxy: tls: failed to verify": testutil.NewForwardProxy(t, "https", stranger, nil).URL(),
		"Proxy Authentication Required":                       wrong(testutil.NewForwardProxy(t, "http", nil, right)),
		"username/password authentication failed":             wrong(testutil.NewForwardProxy(t, "socks5", nil, right)),
		"TLS handshake with the proxy: ": func() *url.URL {
			u := testutil.NewForwardProxy(t, "http", nil, nil).URL()
			u.Scheme = "https"
			return u
		}(),
	} {
		g := NewWithT(t)
		transport := New(address, &tls.Config{InsecureSkipVerify: true}, proxy)
		said := get(t, transport, server.URL)
		g.Expect(said).To(ContainSubstring(text))
		g.Expect(strings.ToLower(said)).NotTo(Or(ContainSubstring("word\""), ContainSubstring("wrong-word"),
			ContainSubstring("top-secret")))
		transport.Close()
	}
}
