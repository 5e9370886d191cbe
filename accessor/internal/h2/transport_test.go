package h2

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
)

// streamingServer is an HTTP/2 server whose responses never end. The server allows a hundred
// streams per connection, and counts connections.
type streamingServer struct {
	*httptest.Server
	streams     atomic.Int32 // streams that clients have open
	open, total atomic.Int32
}

func newStreamingServer(t *testing.T) *streamingServer {
	s := &streamingServer{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
	}))
	s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 100}
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.total.Add(1)
			s.open.Add(1)
		case http.StateClosed, http.StateHijacked:
			s.open.Add(-1)
		}
	}
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// stream opens n streams at once and returns when all are open.
func (s *streamingServer) stream(t *testing.T, transport http.RoundTripper, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for range n {
		running.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
			resp, err := transport.RoundTrip(req)
			if err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			s.streams.Add(1)
			<-ctx.Done()
			_ = resp.Body.Close()
		})
	}
	NewWithT(t).Eventually(s.streams.Load).WithTimeout(30 * time.Second).Should(BeEquivalentTo(n))
}

func (s *streamingServer) transport(t *testing.T) *Transport {
	t.Helper()
	return newTransport(t, s.URL)
}

// Fifty requests at once share the connection that the first of them dialed.
func TestFiftyStarts(t *testing.T) {
	s := newStreamingServer(t)
	s.stream(t, s.transport(t), 50)
	NewWithT(t).Expect(s.total.Load()).To(BeNumerically("<=", 2),
		"one connection, and another if the machine is so busy that a handshake takes a second")
}

// A request that has waited for a connection leaves nothing behind, although its stream goes on.
func TestWaitersAreForgotten(t *testing.T) {
	g := NewWithT(t)
	s := newStreamingServer(t)
	transport := s.transport(t)
	s.stream(t, transport, 1)
	pool := transport.http2
	var waited []weak.Pointer[waiter]
	var served []chan struct{}
	pool.mu.Lock()
	conn := pool.conns[0]
	for range 2 {
		w := &waiter{done: make(chan struct{})}
		pool.waiters, waited, served = append(pool.waiters, w), append(waited, weak.Make(w)), append(served, w.done)
	}
	pool.mu.Unlock()
	for _, done := range served {
		pool.serve()
		g.Eventually(done).Should(BeClosed())
		pool.sent(conn) // so that the next one has room
	}
	for _, w := range waited {
		g.Eventually(func() *waiter {
			runtime.GC()
			return w.Value()
		}).Should(BeNil())
	}
	runtime.KeepAlive(pool)
}

// A thousand requests at once need ten connections and get ten.
func TestThousandStarts(t *testing.T) {
	s := newStreamingServer(t)
	s.stream(t, s.transport(t), 1000)
	NewWithT(t).Expect(s.total.Load()).To(And(BeNumerically(">=", 10), BeNumerically("<=", 12)),
		"ten connections, and two more if the machine is very busy")
}

// Bursts of requests share a connection: the headers of one may be sent just after another found no
// room, and that is no reason to dial.
func TestBurstsShareAConnection(t *testing.T) {
	g := NewWithT(t)
	var dials atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			dials.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	transport := (&streamingServer{Server: server}).transport(t)
	for range 500 {
		var burst errgroup.Group
		for range 20 {
			burst.Go(func() error {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
				resp, err := transport.RoundTrip(req)
				if err == nil {
					err = resp.Body.Close()
				}
				return err
			})
		}
		g.Expect(burst.Wait()).To(Succeed())
	}
	g.Expect(dials.Load()).To(BeNumerically("<=", 2),
		"one, and another if the machine is so busy that a request takes a second")
}

// newHangingListener returns the URL of a listener that accepts connections and never answers, and
// the number of accepted connections.
func newHangingListener(t *testing.T) (url string, accepted *atomic.Int32) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	accepted = &atomic.Int32{}
	var running sync.WaitGroup
	running.Go(func() {
		var conns []net.Conn
		for {
			conn, err := listener.Accept()
			if err != nil {
				break
			}
			accepted.Add(1)
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	return "https://" + listener.Addr().String(), accepted
}

// A request that waits for a connection waits no longer than its own context, also if another
// request has started the dial. A server that hangs receives one dial.
func TestWaitingForAConnection(t *testing.T) {
	g := NewWithT(t)
	url, accepted := newHangingListener(t)
	transport := newTransport(t, url)
	ask := func(ctx context.Context) error {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
		_, err := transport.RoundTrip(req)
		return err
	}
	patient, cancelPatient := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() { waiting <- ask(patient) }()
	g.Eventually(accepted.Load).Should(BeEquivalentTo(1))
	for range 20 {
		impatient, cancel := context.WithCancel(t.Context())
		cancel()
		g.Expect(ask(impatient)).To(MatchError(context.Canceled))
	}
	g.Expect(accepted.Load()).To(BeEquivalentTo(1))
	cancelPatient()
	g.Eventually(waiting).Should(Receive(MatchError(context.Canceled)))

	// When the last member leaves, the dial ends; goleak fails the test otherwise.
	again := make(chan error, 1)
	go func() { again <- ask(t.Context()) }()
	transport.Close()
	g.Eventually(again).Should(Receive(HaveOccurred()))
}

// newHangingProxy returns the URL of a proxy for a server, and the number of accepted connections.
// The first hang connections never answer.
func newHangingProxy(t *testing.T, server string, hang int32) (url string, accepted *atomic.Int32) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	accepted = &atomic.Int32{}
	var running sync.WaitGroup
	ended := make(chan struct{})
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer client.Close()
				if accepted.Add(1) <= hang {
					<-ended
					return
				}
				server, err := net.Dial("tcp", strings.TrimPrefix(server, "https://"))
				if err != nil {
					return
				}
				defer server.Close()
				go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
				_, _ = io.Copy(client, server)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		close(ended)
		running.Wait()
	})
	return "https://" + listener.Addr().String(), accepted
}

// A dial that hangs delays requests by fallbackDelay only, because another dial starts.
func TestDialThatHangs(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	url, accepted := newHangingProxy(t, server.URL, 1)
	transport := newTransport(t, url)
	ctx, cancel := context.WithTimeout(t.Context(), dialTimeout-fallbackDelay)
	defer cancel()
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			_ = resp.Body.Close()
		})
	}
	asking.Wait()
	g.Expect(accepted.Load()).To(And(BeNumerically(">=", 2), BeNumerically("<=", maxDials)))
}

// A request that waits for a dial uses room that becomes free meanwhile.
func TestRoomThatComesFree(t *testing.T) {
	g := NewWithT(t)
	release := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/long" {
			<-release
		}
	}))
	server.EnableHTTP2 = true
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1}
	server.StartTLS()
	t.Cleanup(server.Close)
	transport := newTransport(t, server.URL)
	ask := func(path string) error {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		resp, err := transport.RoundTrip(req)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	g.Expect(ask("/")).To(Succeed())
	pool := transport.http2
	pool.mu.Lock()
	// further dials hang
	pool.dial = func(ctx context.Context) (*http.ClientConn, error) { <-ctx.Done(); return nil, ctx.Err() }
	pool.mu.Unlock()
	long, waiting := make(chan error, 1), make(chan error, 1)
	go func() { long <- ask("/long") }()
	g.Eventually(func() int {
		pool.mu.Lock()
		defer pool.mu.Unlock()
		return pool.conns[0].InFlight()
	}).Should(Equal(1))
	go func() { waiting <- ask("/") }()
	g.Eventually(func() int {
		pool.mu.Lock()
		defer pool.mu.Unlock()
		return len(pool.dials)
	}).Should(Equal(1), "the second request waits for a dial")
	close(release)
	g.Eventually(waiting, dialTimeout/2).Should(Receive(BeNil()))
	g.Expect(<-long).To(Succeed())
}

// If dials hang, the pool starts at most maxDials, and each dial has a timeout.
func TestDialsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var dials atomic.Int32
		var ends []time.Duration
		var mu sync.Mutex
		pool := newPool(t.Context(), "host:443", func(ctx context.Context) (*http.ClientConn, error) {
			startedAt := time.Now()
			dials.Add(1)
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			ends = append(ends, time.Since(startedAt))
			return nil, ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), dialTimeout-time.Second)
		var waiting sync.WaitGroup
		for range 50 {
			waiting.Go(func() {
				_, err := pool.acquire(ctx)
				g.Expect(err).To(MatchError(context.DeadlineExceeded))
			})
		}
		waiting.Wait()
		cancel()
		g.Expect(dials.Load()).To(BeEquivalentTo(maxDials))
		<-time.After(dialTimeout)
		synctest.Wait()
		g.Expect(ends).To(Equal(slices.Repeat([]time.Duration{dialTimeout}, maxDials)))
		g.Expect(pool.dials).To(BeEmpty())
	})
}

// Where HTTP/2 is not possible, or not allowed, requests use HTTP/1.1.
func TestWhereHTTP2IsNotToBeHad(t *testing.T) {
	g := NewWithT(t)
	proxied := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy"})}
	transport := &Transport{http1: proxied}
	g.Expect(transport.mayUseHTTP2(&url.URL{Scheme: "https", Host: "server"})).To(BeFalse())
	proxied.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	g.Expect(transport.mayUseHTTP2(&url.URL{Scheme: "https", Host: "server"})).To(BeTrue())
	g.Expect(transport.mayUseHTTP2(&url.URL{Scheme: "http", Host: "server"})).To(BeFalse())

	var proto atomic.Pointer[string]
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		proto.Store(&req.Proto)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	transport = newTransport(t, server.URL)
	for upgrade, want := range map[string]string{"": "HTTP/2.0", "websocket": "HTTP/1.1"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if upgrade != "" {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", upgrade)
		}
		resp, err := transport.RoundTrip(req)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resp.Body.Close()).To(Succeed())
		g.Expect(*proto.Load()).To(Equal(want))
	}
}

// closeRecorder is a request body that records whether it was closed.
type closeRecorder struct {
	io.Reader
	closed atomic.Bool
}

func (c *closeRecorder) Close() error {
	if c.closed.Swap(true) {
		panic("closed twice")
	}
	return nil
}

// If no connection is available, the body is closed, as net/http does.
func TestBodyIsClosed(t *testing.T) {
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(listener.Close()).To(Succeed())
	url := "https://" + listener.Addr().String()
	transport := newTransport(t, url)
	body := &closeRecorder{Reader: strings.NewReader("body")}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	_, err = transport.RoundTrip(req)
	g.Expect(err).To(MatchError(ContainSubstring("connection refused")))
	g.Expect(body.closed.Load()).To(BeTrue())
}

// The environment can switch HTTP/2 off, as with any client of client-go.
func TestHTTP2SwitchedOff(t *testing.T) {
	s := newStreamingServer(t)
	NewWithT(t).Expect(s.transport(t).http2).NotTo(BeNil())
	t.Run("for client-go", func(t *testing.T) {
		t.Setenv("DISABLE_HTTP2", "true")
		NewWithT(t).Expect(s.transport(t).http2).To(BeNil())
	})
	t.Run("for net/http", func(t *testing.T) {
		t.Setenv("GODEBUG", "http2client=0")
		NewWithT(t).Expect(s.transport(t).http2).To(BeNil())
	})
}

// A lost connection is replaced, and requests that were not answered fail instead of hanging.
func TestLostConnection(t *testing.T) {
	g := NewWithT(t)
	s := newStreamingServer(t)
	transport := s.transport(t)
	s.stream(t, transport, 1)
	s.CloseClientConnections()
	pool := transport.http2
	g.Eventually(func() int {
		pool.mu.Lock()
		defer pool.mu.Unlock()
		return len(pool.conns)
	}).Should(BeZero(), "the pool removes the lost connection")
	s.streams.Store(0)
	s.stream(t, transport, 1)
	g.Expect(s.total.Load()).To(BeEquivalentTo(2))
}

// Requests to a server without HTTP/2 use HTTP/1.1, also requests with a body.
func TestServerWithoutHTTP2(t *testing.T) {
	g := NewWithT(t)
	var opened atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Proto", req.Proto)
		_, _ = io.Copy(w, req.Body)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	transport := newTransport(t, server.URL)
	for range 2 {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("echo"))
		resp, err := transport.RoundTrip(req)
		g.Expect(err).NotTo(HaveOccurred())
		body, err := io.ReadAll(resp.Body)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resp.Body.Close()).To(Succeed())
		g.Expect(string(body)).To(Equal("echo"))
		g.Expect(resp.Header.Get("Proto")).To(Equal("HTTP/1.1"))
	}
	g.Expect(opened.Load()).To(BeEquivalentTo(2), "one connection to find out, and one that is used from then on")
}
