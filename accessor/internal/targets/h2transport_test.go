package targets

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
)

// streaming is an HTTP/2 server, a hundred streams on a connection, whose responses never end. It
// counts connections.
type streaming struct {
	*httptest.Server
	streams     atomic.Int32 // that clients have open
	open, total atomic.Int32
}

func newStreaming(t *testing.T) *streaming {
	s := &streaming{}
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

// stream opens so many streams at once and returns when all are open.
func (s *streaming) stream(t *testing.T, through http.RoundTripper, n int) {
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
			resp, err := through.RoundTrip(req)
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

func (s *streaming) target(t *testing.T) *Target {
	t.Helper()
	var set Set
	target, err := set.Join(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(target.Leave)
	return target.Target
}

// Fifty starts at once find the connection that the first of them dialed.
func TestFiftyStarts(t *testing.T) {
	s := newStreaming(t)
	s.stream(t, s.target(t).RoundTripper(), 50)
	NewWithT(t).Expect(s.total.Load()).To(BeNumerically("<=", 2),
		"one, and another if the machine is so busy that a handshake takes a second")
}

// A thousand need ten connections and get ten.
func TestThousandStarts(t *testing.T) {
	s := newStreaming(t)
	s.stream(t, s.target(t).RoundTripper(), 1000)
	NewWithT(t).Expect(s.total.Load()).To(And(BeNumerically(">=", 10), BeNumerically("<=", 12)),
		"two more if the machine is very busy")
}

// hanging is an address that accepts connections and then says nothing; it counts them.
func hanging(t *testing.T) (url string, accepted *atomic.Int32) {
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

// Who waits for a connection waits no longer than its own context, whoever dials; and a server that
// hangs meets one dial.
func TestWaitingForAConnection(t *testing.T) {
	g := NewWithT(t)
	url, accepted := hanging(t)
	var set Set
	target, err := set.Join(&rest.Config{Host: url}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	ask := func(ctx context.Context) error {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
		_, err := target.RoundTripper().RoundTrip(req)
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

	// The last member's end ends the dial that nobody waits for; goleak sees it.
	again := make(chan error, 1)
	go func() { again <- ask(t.Context()) }()
	target.Leave()
	g.Eventually(again).Should(Receive(HaveOccurred()))
}

// behind is an address that passes connections on to a server, but for the first ones, which it
// lets hang. It counts them.
func behind(t *testing.T, server string, hang int32) (url string, accepted *atomic.Int32) {
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

// A dial that hangs holds nobody up for long: another one is tried beside it.
func TestDialThatHangs(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	url, accepted := behind(t, server.URL, 1)
	var set Set
	target, err := set.Join(&rest.Config{Host: url, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(target.Leave)
	ctx, cancel := context.WithTimeout(t.Context(), dialTimeout-dialPatience)
	defer cancel()
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			resp, err := target.RoundTripper().RoundTrip(req)
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

// Who waits for a dial takes the room that others leave meanwhile.
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
	var set Set
	target, err := set.Join(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(target.Leave)
	ask := func(path string) error {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		resp, err := target.RoundTripper().RoundTrip(req)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	g.Expect(ask("/")).To(Succeed())
	pool := target.transport.h2.http2
	pool.mu.Lock()
	// from now on they hang
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
	}).Should(Equal(1), "it waits for a dial")
	close(release)
	g.Eventually(waiting, dialTimeout/2).Should(Receive(BeNil()))
	g.Expect(<-long).To(Succeed())
}

// However long dials hang, few are tried, and each has its end.
func TestDialsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var dials atomic.Int32
		var ends []time.Duration
		var mu sync.Mutex
		pool := newH2Pool(t.Context(), "host:443", func(ctx context.Context) (*http.ClientConn, error) {
			begun := time.Now()
			dials.Add(1)
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			ends = append(ends, time.Since(begun))
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

// What HTTP/2 cannot do, or must not, goes to net/http; dead connections are noticed.
func TestWhereHTTP2IsNotToBeHad(t *testing.T) {
	g := NewWithT(t)
	proxied := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy"})}
	g.Expect(newH2Transport(t.Context(), &http.Request{URL: &url.URL{Scheme: "https", Host: "server"}}, proxied).http2).
		To(BeNil())
	proxied.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	g.Expect(newH2Transport(t.Context(), &http.Request{URL: &url.URL{Scheme: "https", Host: "server"}}, proxied).http2).
		NotTo(BeNil())
	g.Expect(newH2Transport(t.Context(), &http.Request{URL: &url.URL{Scheme: "http", Host: "server"}}, proxied).http2).
		To(BeNil())

	var proto atomic.Pointer[string]
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		proto.Store(&req.Proto)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	var set Set
	target, err := set.Join(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(target.Leave)
	for upgrade, want := range map[string]string{"": "HTTP/2.0", "websocket": "HTTP/1.1"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if upgrade != "" {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", upgrade)
		}
		resp, err := target.RoundTripper().RoundTrip(req)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resp.Body.Close()).To(Succeed())
		g.Expect(*proto.Load()).To(Equal(want))
	}
}

// closes tells whether a request body was closed.
type closes struct {
	io.Reader
	closed atomic.Bool
}

func (c *closes) Close() error {
	if c.closed.Swap(true) {
		panic("closed twice")
	}
	return nil
}

// Where no connection is to be had the body is closed, as net/http does.
func TestBodyIsClosed(t *testing.T) {
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(listener.Close()).To(Succeed())
	url := "https://" + listener.Addr().String()
	var set Set
	target, err := set.Join(&rest.Config{Host: url}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(target.Leave)
	body := &closes{Reader: strings.NewReader("body")}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	_, err = target.RoundTripper().RoundTrip(req)
	g.Expect(err).To(MatchError(ContainSubstring("connection refused")))
	g.Expect(body.closed.Load()).To(BeTrue())
}

// HTTP/2 can be switched off, as with any client of client-go.
func TestHTTP2SwitchedOff(t *testing.T) {
	s := newStreaming(t)
	NewWithT(t).Expect(s.target(t).transport.h2.http2).NotTo(BeNil())
	t.Run("for client-go", func(t *testing.T) {
		t.Setenv("DISABLE_HTTP2", "true")
		NewWithT(t).Expect(s.target(t).transport.h2.http2).To(BeNil())
	})
	t.Run("for net/http", func(t *testing.T) {
		t.Setenv("GODEBUG", "http2client=0")
		NewWithT(t).Expect(s.target(t).transport.h2.http2).To(BeNil())
	})
}

// A connection that is lost is replaced, and requests that were not answered fail rather than hang.
func TestLostConnection(t *testing.T) {
	g := NewWithT(t)
	s := newStreaming(t)
	target := s.target(t)
	s.stream(t, target.RoundTripper(), 1)
	s.CloseClientConnections()
	pool := target.transport.h2.http2
	g.Eventually(func() int {
		pool.mu.Lock()
		defer pool.mu.Unlock()
		return len(pool.conns)
	}).Should(BeZero(), "the lost one is forgotten")
	s.streams.Store(0)
	s.stream(t, target.RoundTripper(), 1)
	g.Expect(s.total.Load()).To(BeEquivalentTo(2))
}

// A server without HTTP/2 is talked to in HTTP/1.1, bodies included.
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
	var set Set
	target, err := set.Join(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(target.Leave)
	for range 2 {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("echo"))
		resp, err := target.RoundTripper().RoundTrip(req)
		g.Expect(err).NotTo(HaveOccurred())
		body, err := io.ReadAll(resp.Body)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resp.Body.Close()).To(Succeed())
		g.Expect(string(body)).To(Equal("echo"))
		g.Expect(resp.Header.Get("Proto")).To(Equal("HTTP/1.1"))
	}
	g.Expect(opened.Load()).To(BeEquivalentTo(2), "one to find out, and one that is used on")
}
