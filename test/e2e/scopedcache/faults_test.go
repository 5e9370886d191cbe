package scopedcache_test

import (
	"crypto/tls"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
)

// faults is an API server that passes a user's requests on to the real one, except where a test has
// it do something else.
type faults struct {
	*httptest.Server
	config *rest.Config // of the user, to be served here

	mu     sync.Mutex
	answer func(w http.ResponseWriter, req *http.Request) bool // guarded by mu; true: it did
	hung   int                                                 // guarded by mu; requests that hang
	end    chan struct{}                                       // closed at the end of the test
}

func newFaults(t testing.TB, u *user) *faults {
	t.Helper()
	g := NewWithT(t)
	to, err := url.Parse(u.config.Host)
	g.Expect(err).NotTo(HaveOccurred())
	tlsConfig, err := rest.TLSConfigFor(u.config)
	g.Expect(err).NotTo(HaveOccurred())
	transport := &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     transport,
		FlushInterval: -1, // for watches
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	f := &faults{end: make(chan struct{})}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		f.mu.Lock()
		answer := f.answer
		f.mu.Unlock()
		if answer == nil || !answer(w, req) {
			proxy.ServeHTTP(w, req)
		}
	}))
	f.EnableHTTP2 = true
	f.TLS = &tls.Config{}
	f.StartTLS()
	f.config = &rest.Config{
		Host: f.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}),
		},
	}
	f.config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &counting{next: next, sent: u.sent} })
	closeIdle = append(closeIdle, f.CloseClientConnections, transport.CloseIdleConnections)
	t.Cleanup(func() {
		close(f.end)
		f.CloseClientConnections()
		f.Close()
		transport.CloseIdleConnections()
	})
	return f
}

// do has requests answered by f where that returns true; nil ends it.
func (f *faults) do(answer func(w http.ResponseWriter, req *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// hangOn has requests whose path ends so hang until they are given up.
func (f *faults) hangOn(suffix string) {
	f.do(func(_ http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, suffix) {
			return false
		}
		f.mu.Lock()
		f.hung++
		f.mu.Unlock()
		select {
		case <-req.Context().Done():
		case <-f.end:
		}
		f.mu.Lock()
		f.hung--
		f.mu.Unlock()
		return true
	})
}

// hanging is how many requests hang.
func (f *faults) hanging() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hung
}
