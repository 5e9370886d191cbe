package scopedcache_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
)

// faultyServer is a proxy that forwards a user's requests to the real API server. A test can make
// it answer some requests itself.
type faultyServer struct {
	*httptest.Server
	config *rest.Config // makes requests as the user, through this proxy

	watchDelay atomic.Int64 // in nanoseconds: how much later the client receives what a watch sends
	allDelay   atomic.Int64 // the same for watches of all ConfigMaps, if it is not 0

	mu sync.Mutex
	// answer returns true if it has answered the request. Guarded by mu.
	answer       func(w http.ResponseWriter, req *http.Request) bool
	hangingCount int           // guarded by mu; requests that hang
	done         chan struct{} // closed at the end of the test
}

func newFaultyServer(t testing.TB, u *user) *faultyServer {
	t.Helper()
	g := NewWithT(t)
	target, err := url.Parse(u.config.Host)
	g.Expect(err).NotTo(HaveOccurred())
	tlsConfig, err := rest.TLSConfigFor(u.config)
	g.Expect(err).NotTo(HaveOccurred())
	transport := &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	f := &faultyServer{done: make(chan struct{})}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // flush at once, for watches
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		ModifyResponse: func(resp *http.Response) error {
			if resp.Request.URL.Query().Get("watch") != "" {
				delay := &f.watchDelay
				if f.allDelay.Load() > 0 && strings.HasSuffix(resp.Request.URL.Path, "/v1/configmaps") {
					delay = &f.allDelay
				}
				resp.Body = &delayedBody{resp.Body, resp.Request.Context(), delay}
			}
			return nil
		},
	}
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
		Host: f.URL,
		QPS:  -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}),
		},
	}
	f.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &countingTransport{next: next, requests: u.requests}
	})
	idleClosers = append(idleClosers, f.CloseClientConnections, transport.CloseIdleConnections)
	t.Cleanup(func() {
		close(f.done)
		f.CloseClientConnections()
		f.Close()
		transport.CloseIdleConnections()
	})
	return f
}

// delayedBody is the answer to a watch that arrives later.
type delayedBody struct {
	io.ReadCloser
	ctx   context.Context
	delay *atomic.Int64
}

func (d *delayedBody) Read(into []byte) (int, error) {
	n, err := d.ReadCloser.Read(into)
	if delay := d.delay.Load(); delay > 0 {
		select {
		case <-time.After(time.Duration(delay)):
		case <-d.ctx.Done():
		}
	}
	return n, err
}

// answerWith makes the proxy call answer for each request. The proxy forwards a request for which
// answer returns false. With a nil answer the proxy forwards all requests.
func (f *faultyServer) answerWith(answer func(w http.ResponseWriter, req *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// hangRequests makes requests whose path ends with suffix hang until the client cancels them or the
// test ends.
func (f *faultyServer) hangRequests(suffix string) {
	f.answerWith(func(_ http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, suffix) {
			return false
		}
		f.mu.Lock()
		f.hangingCount++
		f.mu.Unlock()
		select {
		case <-req.Context().Done():
		case <-f.done:
		}
		f.mu.Lock()
		f.hangingCount--
		f.mu.Unlock()
		return true
	})
}

// hanging returns the number of requests that hang.
func (f *faultyServer) hanging() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hangingCount
}
