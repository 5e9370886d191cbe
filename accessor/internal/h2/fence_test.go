package h2

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/term"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// receiver is a server that counts the requests that it has received whole.
type receiver struct {
	*httptest.Server
	whole  atomic.Int32
	parts  atomic.Int32  // requests that began
	answer chan struct{} // closed when requests to /hold are answered
}

func newHTTP2Receiver(t *testing.T) *receiver {
	return newReceiver(t, func(s *httptest.Server) {
		s.EnableHTTP2 = true
		s.StartTLS()
	})
}

func newReceiver(t *testing.T, start func(*httptest.Server)) *receiver {
	r := &receiver{answer: make(chan struct{})}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.parts.Add(1)
		if _, err := io.ReadAll(req.Body); err != nil {
			return
		}
		r.whole.Add(1)
		if req.URL.Path == "/hold" {
			select {
			case <-r.answer:
			case <-req.Context().Done():
			}
		}
	}))
	start(r.Server)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) roundTripper(t *testing.T) http.RoundTripper {
	t.Helper()
	return newTransport(t, r.URL)
}

// post sends a request that needs the term. Nothing but the term ends it: the one whose goroutine
// would cancel it does not run.
func (r *receiver) post(ctx context.Context, roundTripper http.RoundTripper, needed *fence.Term, path string,
	body io.Reader) error {
	req, err := http.NewRequestWithContext(term.With(ctx, needed), http.MethodPost, r.URL+path, body)
	if err != nil {
		return err
	}
	resp, err := roundTripper.RoundTrip(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return err
}

// bodyThen is a body that calls then before its last part.
type bodyThen struct {
	parts []string
	then  func()
}

func (b *bodyThen) Read(p []byte) (int, error) {
	switch len(b.parts) {
	case 0:
		return 0, io.EOF
	case 1:
		b.then()
	}
	n := copy(p, b.parts[0])
	b.parts = b.parts[1:]
	return n, nil
}

// A request whose term ends after it has begun, and before it is written, does not reach the
// server: the headers do not, or else the end of the body does not.
func TestNothingIsWrittenAfterTheTerm(t *testing.T) {
	for protocol, start := range map[string]func(*testing.T) *receiver{
		"HTTP/1.1":          func(t *testing.T) *receiver { return newReceiver(t, (*httptest.Server).Start) },
		"HTTP/1.1 with TLS": func(t *testing.T) *receiver { return newReceiver(t, (*httptest.Server).StartTLS) },
		"HTTP/2":            newHTTP2Receiver,
	} {
		t.Run(protocol, func(t *testing.T) {
			g := NewWithT(t)
			r := start(t)
			roundTripper := r.roundTripper(t)
			l, f := testutil.NewLease()
			l.Renew(3600)
			g.Expect(r.post(t.Context(), roundTripper, f.Term(), "/", strings.NewReader("body"))).To(Succeed())
			g.Expect(r.whole.Load()).To(BeEquivalentTo(1))

			endBeforeHeaders := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				WroteHeaderField: func(string, []string) { l.Release() }}) // called when the headers are composed
			err := r.post(endBeforeHeaders, roundTripper, f.Term(), "/", strings.NewReader("body"))
			g.Expect(err).To(HaveOccurred())
			g.Expect(r.parts.Load()).To(BeEquivalentTo(1))

			l.Renew(3600)
			large := strings.Repeat("x", 100_000)
			body := &bodyThen{parts: []string{large[:1000], large[:1000], "the end"}, then: l.Release}
			g.Expect(r.post(t.Context(), roundTripper, f.Term(), "/", body)).NotTo(Succeed())
			g.Consistently(r.whole.Load).WithTimeout(50 * time.Millisecond).Should(BeEquivalentTo(1))

			l.Renew(3600)
			g.Expect(r.post(t.Context(), roundTripper, f.Term(), "/", strings.NewReader("body"))).To(Succeed(),
				"over another connection")
			g.Expect(r.whole.Load()).To(BeEquivalentTo(2))
			l.Release()
		})
	}
}

// A term that ends takes no connection with it on which all is written and acknowledged: requests
// of others go on.
func TestOthersGoOn(t *testing.T) {
	g := NewWithT(t)
	r := newHTTP2Receiver(t)
	roundTripper := r.roundTripper(t)
	ours, f := testutil.NewLease()
	theirs, other := testutil.NewLease()
	ours.Renew(3600)
	theirs.Renew(3600)
	defer theirs.Release()
	ctx, cancel := context.WithCancel(t.Context())
	result, going := make(chan error, 1), make(chan error, 1)
	// After a first answer, a connection carries several requests.
	g.Expect(r.post(t.Context(), roundTripper, other.Term(), "/", strings.NewReader("body"))).To(Succeed())
	go func() { going <- r.post(t.Context(), roundTripper, other.Term(), "/hold", strings.NewReader("body")) }()
	g.Eventually(r.whole.Load).Should(BeEquivalentTo(2))
	go func() { result <- r.post(ctx, roundTripper, f.Term(), "/hold", strings.NewReader("body")) }()
	g.Eventually(r.whole.Load).Should(BeEquivalentTo(3))
	ours.Release()
	cancel()
	g.Expect(<-result).NotTo(Succeed())
	g.Consistently(going).WithTimeout(200 * time.Millisecond).ShouldNot(Receive())
	g.Expect(r.post(t.Context(), roundTripper, other.Term(), "/", strings.NewReader("body"))).To(Succeed())
	close(r.answer)
	g.Expect(<-going).To(Succeed())
}

// A request that the kernel holds, because the server takes nothing, is dropped when its term ends:
// it does not arrive when the server takes something again.
func TestWhatTheKernelHoldsIsDropped(t *testing.T) {
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer listener.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			accepted <- conn
		}
	}()
	r := &receiver{Server: &httptest.Server{URL: "http://" + listener.Addr().String()}}
	roundTripper := r.roundTripper(t)
	l, f := testutil.NewLease()
	l.Renew(3600)
	ctx, cancel := context.WithCancel(t.Context())
	body := &counting{Reader: strings.NewReader(strings.Repeat("x", 64<<20))}
	result := make(chan error, 1)
	go func() { result <- r.post(ctx, roundTripper, f.Term(), "/", body) }()
	conn := <-accepted
	defer conn.Close()
	last := int64(-1)
	g.Eventually(func() bool {
		now := body.read.Load()
		stopped := now > 0 && now == last
		last = now
		return stopped
	}).WithPolling(100*time.Millisecond).WithTimeout(10*time.Second).Should(BeTrue(), "the buffers are full")
	l.Release()
	cancel()
	g.Expect(<-result).NotTo(Succeed())
	received, err := io.Copy(io.Discard, conn)
	g.Expect(err).To(MatchError(ContainSubstring("connection reset")), "and not the end of a stream")
	g.Expect(received).To(BeNumerically("<", last), "what the kernel of this side still had is gone")
}

type counting struct {
	io.Reader
	read atomic.Int64
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// A transport that is closed ends its connections at once. That sends nothing more, either.
func TestCloseDropsRequests(t *testing.T) {
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer listener.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			accepted <- conn
		}
	}()
	transport := newTransport(t, "http://"+listener.Addr().String())
	l, f := testutil.NewLease()
	l.Renew(3600)
	defer l.Release()
	r := &receiver{Server: &httptest.Server{URL: "http://" + listener.Addr().String()}}
	body := &counting{Reader: strings.NewReader(strings.Repeat("x", 64<<20))}
	result := make(chan error, 1)
	go func() { result <- r.post(t.Context(), transport, f.Term(), "/", body) }()
	conn := <-accepted
	defer conn.Close()
	last := int64(-1)
	g.Eventually(func() bool {
		now := body.read.Load()
		stopped := now > 0 && now == last
		last = now
		return stopped
	}).WithPolling(100*time.Millisecond).WithTimeout(10*time.Second).Should(BeTrue(), "the buffers are full")
	transport.Close()
	g.Expect(<-result).NotTo(Succeed())
	_, err = io.Copy(io.Discard, conn)
	g.Expect(err).To(MatchError(syscall.ECONNRESET))
}
