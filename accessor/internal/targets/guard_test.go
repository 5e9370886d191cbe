package targets

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/fence"
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
	var set Set
	target, err := set.Join(&rest.Config{Host: r.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: r.TLS != nil}}, nil,
		&Policy{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(target.Leave)
	return target.Target.RoundTripper()
}

// post sends a request that needs the term. Nothing but the term ends it: the one whose goroutine would
// cancel it does not run.
func (r *receiver) post(ctx context.Context, roundTripper http.RoundTripper, term *fence.Term, path string,
	body io.Reader) error {
	req, err := http.NewRequestWithContext(fence.WithTerm(ctx, term), http.MethodPost, r.URL+path, body)
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

// A request whose term ends after it has begun, and before it is written, does not reach the server:
// the headers do not, or else the end of the body does not.
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

// A term that ends takes no connection with it on which all is written and acknowledged: requests of
// others go on.
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
	g.Consistently(going).WithTimeout(2 * ackPatience).ShouldNot(Receive())
	g.Expect(r.post(t.Context(), roundTripper, other.Term(), "/", strings.NewReader("body"))).To(Succeed())
	close(r.answer)
	g.Expect(<-going).To(Succeed())
}

// A request that the kernel holds, because the server takes nothing, is dropped when its term ends: it
// does not arrive when the server takes something again.
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

// tcpPair returns a guarded connection and its other side.
func tcpPair(t *testing.T, g *guard) (ours *guardedConn, theirs net.Conn) {
	t.Helper()
	gm := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	gm.Expect(err).NotTo(HaveOccurred())
	defer listener.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := listener.Accept()
		accepted <- conn
	}()
	dialed, err := net.Dial("tcp", listener.Addr().String())
	gm.Expect(err).NotTo(HaveOccurred())
	theirs = <-accepted
	gm.Expect(theirs).NotTo(BeNil())
	ours = guarded(withGuard(t.Context(), g), dialed).(*guardedConn)
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return ours, theirs
}

// A guard forgets requests, and blocks nothing that needs no term.
func TestGuard(t *testing.T) {
	g := NewWithT(t)
	l, f := testutil.NewLease()
	l.Renew(3600)
	var none *guard
	g.Expect(none.begin(f.Term())).To(BeNil())
	own := &guard{}
	left, right := tcpPair(t, own)
	g.Expect(own.begin(nil)).To(BeNil())
	var running sync.WaitGroup
	for range 100 {
		running.Go(func() {
			use := own.begin(f.Term())
			g.Expect(own.check()).To(Succeed())
			use.wroteRequest()
			use.hasReturned()
		})
	}
	running.Wait()
	g.Expect(own.uses).To(BeEmpty())
	late := own.begin(f.Term())
	late.hasReturned() // cancelled by its caller, while net/http is about to write it
	g.Expect(own.check()).To(Succeed())
	late.returned = time.Now().Add(-lateWrite)
	own.begin(f.Term()).wroteRequest()
	g.Expect(own.uses).To(BeEmpty())
	late = own.begin(f.Term())
	late.hasReturned()
	l.Release()
	_, err := left.Write([]byte("late"))
	g.Expect(err).To(MatchError(fence.ErrClosed))
	received, _ := io.ReadAll(right)
	g.Expect(received).To(BeEmpty(), "the connection is closed")
}

// fill writes until the buffers of both sides are full, and returns how much.
func fill(t *testing.T, conn *guardedConn) int64 {
	t.Helper()
	g := NewWithT(t)
	g.Expect(conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))).To(Succeed())
	n, err := conn.Write(make([]byte, 64<<20))
	g.Expect(err).To(MatchError(os.ErrDeadlineExceeded))
	g.Expect(conn.SetWriteDeadline(time.Time{})).To(Succeed())
	return int64(n)
}

// A write that waits for room looks again when there is room.
func TestWriteThatWaits(t *testing.T) {
	g := NewWithT(t)
	l, f := testutil.NewLease()
	l.Renew(3600)
	own := &guard{}
	left, right := tcpPair(t, own)
	filled := fill(t, left)
	own.begin(f.Term())
	result := make(chan error, 1)
	go func() {
		_, err := left.Write(make([]byte, 8<<20))
		result <- err
	}()
	g.Consistently(result).WithTimeout(50 * time.Millisecond).ShouldNot(Receive())
	l.Release() // the context of the request goes on
	received, _ := io.Copy(io.Discard, right)
	g.Expect(<-result).To(MatchError(fence.ErrClosed))
	g.Expect(received).To(BeNumerically("<", filled+8<<20))
}

// Closing a connection drops what the other side has not acknowledged of a request that needs a term.
func TestCloseDropsWhatIsNotAcknowledged(t *testing.T) {
	for name, tc := range map[string]struct {
		uses  func(*guard, *fence.Fence)
		whole bool
	}{
		"a request that needs a term": {uses: func(own *guard, f *fence.Fence) { own.begin(f.Term()).wroteRequest() }},
		"no such request":             {uses: func(*guard, *fence.Fence) {}, whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			l, f := testutil.NewLease()
			l.Renew(3600)
			defer l.Release()
			own := &guard{}
			left, right := tcpPair(t, own)
			filled := fill(t, left)
			tc.uses(own, f)
			g.Expect(left.Close()).To(Succeed())
			received, err := io.Copy(io.Discard, right)
			if tc.whole {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(received).To(Equal(filled))
			} else {
				g.Expect(err).To(MatchError(syscall.ECONNRESET))
				g.Expect(received).To(BeNumerically("<", filled))
			}
		})
	}
}

// A request that was written, and that the other side does not acknowledge, takes its connection with it
// when its term ends; an acknowledged one does not.
func TestUnacknowledgedRequest(t *testing.T) {
	g := NewWithT(t)
	l, f := testutil.NewLease()
	for _, acknowledged := range []bool{true, false} {
		l.Renew(3600)
		own := &guard{}
		left, right := tcpPair(t, own)
		use := own.begin(f.Term())
		if acknowledged {
			_, err := left.Write([]byte("request"))
			g.Expect(err).NotTo(HaveOccurred())
		} else {
			fill(t, left)
		}
		use.wroteRequest()
		if acknowledged {
			_, err := io.ReadFull(right, make([]byte, 7))
			g.Expect(err).NotTo(HaveOccurred())
			g.Eventually(func() bool {
				own.mu.Lock()
				defer own.mu.Unlock()
				return own.isDeliveredLocked(use.upTo)
			}).Should(BeTrue())
		}
		l.Release()
		use.hasReturned()
		use.abortUnlessDelivered()
		_, err := left.Write([]byte("next"))
		g.Expect(err == nil).To(Equal(acknowledged), "%v", err)
	}
}

// A request that the other side has acknowledged takes no connection with it, although a later one of
// another extension is not acknowledged yet.
func TestLaterRequestsDoNotCount(t *testing.T) {
	g := NewWithT(t)
	l, f := testutil.NewLease()
	defer l.Release()
	l.Renew(3600)
	own := &guard{}
	left, right := tcpPair(t, own)
	part := f.Term().Part()
	givenUp, stays := own.begin(part), own.begin(f.Term())
	_, err := left.Write([]byte("request"))
	g.Expect(err).NotTo(HaveOccurred())
	givenUp.wroteRequest()
	_, err = io.ReadFull(right, make([]byte, 7))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() bool {
		own.mu.Lock()
		defer own.mu.Unlock()
		return own.isDeliveredLocked(givenUp.upTo)
	}).Should(BeTrue())
	fill(t, left)
	stays.wroteRequest()
	part.End("given up")
	givenUp.hasReturned()
	givenUp.abortUnlessDelivered()
	go func() { _, _ = io.Copy(io.Discard, right) }()
	_, err = left.Write([]byte("next"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left.Close()).To(Succeed())
}

// The last member that leaves a target closes its connections at once. That sends nothing more, either.
func TestLeaveDropsRequests(t *testing.T) {
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
	var set Set
	target, err := set.Join(&rest.Config{Host: "http://" + listener.Addr().String()}, nil, &Policy{})
	g.Expect(err).NotTo(HaveOccurred())
	l, f := testutil.NewLease()
	l.Renew(3600)
	defer l.Release()
	r := &receiver{Server: &httptest.Server{URL: target.Host()}}
	body := &counting{Reader: strings.NewReader(strings.Repeat("x", 64<<20))}
	result := make(chan error, 1)
	go func() { result <- r.post(t.Context(), target.Target.RoundTripper(), f.Term(), "/", body) }()
	conn := <-accepted
	defer conn.Close()
	last := int64(-1)
	g.Eventually(func() bool {
		now := body.read.Load()
		stopped := now > 0 && now == last
		last = now
		return stopped
	}).WithPolling(100*time.Millisecond).WithTimeout(10*time.Second).Should(BeTrue(), "the buffers are full")
	target.Leave()
	g.Expect(<-result).NotTo(Succeed())
	_, err = io.Copy(io.Discard, conn)
	g.Expect(err).To(MatchError(syscall.ECONNRESET))
}

// A connection that ends waits for a write under way, and so the write must not wait for the one that ends
// the connection.
func TestTermEndsDuringAWrite(t *testing.T) {
	g := NewWithT(t)
	l, f := testutil.NewLease()
	l.Renew(3600)
	own := &guard{}
	left, _ := tcpPair(t, own)
	use := own.begin(f.Term())
	inside, goOn := make(chan struct{}), make(chan struct{})
	written, returned := make(chan error, 1), make(chan struct{})
	go func() {
		_, err := writeChecked(left.TCPConn, []byte("request"), func() error {
			close(inside)
			<-goOn
			return own.check()
		})
		written <- err
	}()
	<-inside
	l.Release()
	go func() {
		defer close(returned)
		use.hasReturned()
	}()
	g.Eventually(func() error {
		raw, err := left.SyscallConn()
		if err == nil {
			err = raw.Control(func(uintptr) {})
		}
		return err
	}).Should(HaveOccurred(), "the connection has begun to end")
	close(goOn)
	g.Eventually(written).Should(Receive(MatchError(fence.ErrClosed)))
	g.Eventually(returned).Should(BeClosed())
}
