package h2

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// The HTTP/2 frame types and codes that the tests use (RFC 9113, sections 6 and 7).
const (
	frameData, frameHeaders, frameReset, frameSettings, framePing, frameGoAway = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7
	flagEndStream, flagEndHeaders, flagAck                                     = 0x1, 0x4, 0x1
	settingMaxStreams                                                          = 0x3
)

// rawH2 is an HTTP/2 server that answers each request with answer, and enforces no rules of HTTP/2.
type rawH2 struct {
	url      string
	conns    atomic.Int32 // accepted connections
	requests atomic.Int32 // requests that were received completely
	answer   func(c *rawConn, stream uint32, n int32)
	settings []byte        // payload of its SETTINGS
	delay    chan struct{} // if not nil, the server sends SETTINGS after delay is closed

	mu     sync.Mutex
	bodies map[string]string // guarded by mu; received bodies, by connection and stream
}

type rawConn struct {
	net.Conn
	settingsSent chan struct{} // closed after SETTINGS were sent
	mu           sync.Mutex
}

func (c *rawConn) frame(kind, flags byte, stream uint32, payload ...byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	header := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	_, _ = c.Write(append(binary.BigEndian.AppendUint32(header, stream), payload...))
}

// ok answers 200 without a body: 0x88 is ":status: 200" in HPACK's static table.
func (c *rawConn) ok(stream uint32) {
	c.frame(frameHeaders, flagEndStream|flagEndHeaders, stream, 0x88)
}

func newRawH2(t *testing.T, answer func(c *rawConn, stream uint32, n int32)) *rawH2 {
	t.Helper()
	certificates := httptest.NewTLSServer(nil)
	config := certificates.TLS.Clone()
	certificates.Close()
	config.NextProtos = []string{"h2"}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	s := &rawH2{url: "https://" + listener.Addr().String(), answer: answer, bodies: map[string]string{}}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			n := s.conns.Add(1)
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			running.Go(func() {
				defer stop()
				defer conn.Close()
				s.serve(&rawConn{Conn: conn, settingsSent: make(chan struct{})}, n)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		cancel()
		running.Wait()
	})
	return s
}

func (s *rawH2) serve(c *rawConn, n int32) {
	preface := make([]byte, 24)
	if _, err := io.ReadFull(c, preface); err != nil {
		return
	}
	settle := func() { c.frame(frameSettings, 0, 0, s.settings...); close(c.settingsSent) }
	if s.delay == nil {
		settle()
	} else {
		go func() { <-s.delay; settle() }()
	}
	for {
		header := make([]byte, 9)
		if _, err := io.ReadFull(c, header); err != nil {
			return
		}
		payload := make([]byte, int(header[0])<<16|int(header[1])<<8|int(header[2]))
		if _, err := io.ReadFull(c, payload); err != nil {
			return
		}
		kind, flags, stream := header[3], header[4], binary.BigEndian.Uint32(header[5:])
		switch {
		case kind == frameSettings && flags&flagAck == 0:
			c.frame(frameSettings, flagAck, 0)
		case kind == framePing && flags&flagAck == 0:
			c.frame(framePing, flagAck, 0, payload...)
		case kind == frameData:
			s.mu.Lock()
			s.bodies[fmt.Sprint(n, "/", stream)] += string(payload)
			s.mu.Unlock()
		}
		if (kind == frameHeaders || kind == frameData) && flags&flagEndStream != 0 {
			s.answer(c, stream, s.requests.Add(1))
		}
	}
}

func (s *rawH2) transport(t *testing.T) *Transport {
	t.Helper()
	return newTransport(t, s.url)
}

// receivedBodies returns the bodies that arrived.
func (s *rawH2) receivedBodies() (bodies []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, body := range s.bodies {
		bodies = append(bodies, body)
	}
	return bodies
}

func post(t *testing.T, transport *Transport, url string, body io.Reader) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	NewWithT(t).Expect(resp.Request).To(BeIdenticalTo(req))
	return resp.Body.Close()
}

// A request that the server reports as not processed is sent again, with the whole body.
func TestUnprocessedRequestsAreSentAgain(t *testing.T) {
	refuse := func(c *rawConn, stream uint32) { c.frame(frameReset, 0, stream, 0, 0, 0, 7) }
	// NO_ERROR, last stream 0
	goAway := func(c *rawConn, stream uint32) { c.frame(frameGoAway, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) }
	for name, tc := range map[string]struct {
		decline func(*rawConn, uint32)
		conns   int32
	}{"REFUSED_STREAM": {refuse, 1}, "GOAWAY": {goAway, 2}} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newRawH2(t, func(c *rawConn, stream uint32, n int32) {
				if n == 1 {
					tc.decline(c, stream)
				} else {
					c.ok(stream)
				}
			})
			g.Expect(post(t, s.transport(t), s.url, strings.NewReader("body"))).To(Succeed())
			g.Expect(s.requests.Load()).To(BeEquivalentTo(2))
			g.Expect(s.conns.Load()).To(Equal(tc.conns))
			g.Expect(s.receivedBodies()).To(Equal([]string{"body", "body"}))
		})
	}
}

// A request that the server may have processed is not sent again, nor a request whose body cannot
// be sent again.
func TestRequestsThatAreNotSentAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		decline func(*rawConn, uint32)
		body    io.Reader
	}{
		"the connection is lost": {func(c *rawConn, _ uint32) { _ = c.Close() }, strings.NewReader("body")},
		"the server fails": {func(c *rawConn, stream uint32) {
			c.frame(frameReset, 0, stream, 0, 0, 0, 2)
		}, strings.NewReader("body")},
		"the body cannot be reread": {func(c *rawConn, stream uint32) {
			c.frame(frameReset, 0, stream, 0, 0, 0, 7)
		}, io.MultiReader(strings.NewReader("body"))},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newRawH2(t, func(c *rawConn, stream uint32, _ int32) { tc.decline(c, stream) })
			g.Expect(post(t, s.transport(t), s.url, tc.body)).NotTo(Succeed())
			g.Expect(s.requests.Load()).To(BeEquivalentTo(1))
		})
	}
}

// The Close of an unread body takes effect only when the body is not sent again.
func TestUnreadBody(t *testing.T) {
	g := NewWithT(t)
	original := &closeRecorder{Reader: strings.NewReader("body")}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://one", original)
	body := newReplayable(req)
	sent := body.attach(req).Body
	g.Expect(sent.Close()).To(Succeed())
	g.Expect(original.closed.Load()).To(BeFalse())
	g.Expect(body.rewind()).To(Succeed())
	sent = body.attach(req).Body
	g.Expect(sent.Close()).To(Succeed())
	body.sent()
	g.Expect(original.closed.Load()).To(BeTrue(), "the server answered without reading the body")

	original = &closeRecorder{Reader: strings.NewReader("body")}
	req.Body = original
	body = newReplayable(req)
	body.sent()
	g.Expect(original.closed.Load()).To(BeFalse(), "the body is still being sent")
	g.Expect(body.attach(req).Body.Close()).To(Succeed())
	g.Expect(original.closed.Load()).To(BeTrue())
	g.Expect(newReplayable(httptest.NewRequest(http.MethodGet, "/", nil)).rewind()).
		To(Succeed(), "the request has no body")
}

// An invalid request fails at once, also on a connection that has answered before.
func TestInvalidRequests(t *testing.T) {
	g := NewWithT(t)
	s := newRawH2(t, func(c *rawConn, stream uint32, _ int32) { c.ok(stream) })
	transport := s.transport(t)
	g.Expect(post(t, transport, s.url, http.NoBody)).To(Succeed())
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url, nil)
	req.Header.Set("Authorization", "line\nbreak")
	failed := make(chan error, 1)
	go func() { _, err := transport.RoundTrip(req); failed <- err }()
	g.Eventually(failed).WithTimeout(time.Second / 2).
		Should(Receive(MatchError(ContainSubstring("invalid header field value"))))
	g.Expect(post(t, transport, s.url, http.NoBody)).To(Succeed())
	g.Expect(s.conns.Load()).To(BeEquivalentTo(1))
}

// A request that the server always refuses is sent a few times.
func TestRefusedForEver(t *testing.T) {
	g := NewWithT(t)
	s := newRawH2(t, func(c *rawConn, stream uint32, _ int32) { c.frame(frameReset, 0, stream, 0, 0, 0, 7) })
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	done := make(chan error, 1)
	transport := s.transport(t)
	go func() { _, err := transport.RoundTrip(req); done <- err }()
	g.Eventually(s.requests.Load).Should(BeNumerically(">=", 2))
	cancel()
	g.Eventually(done).Should(Receive(MatchError(context.Canceled)),
		"the delay between two sends ends with the request's context")
}

// No request fails because the server ends the connection between two requests.
func TestRequestsAfterGoAway(t *testing.T) {
	g := NewWithT(t)
	s := newRawH2(t, func(c *rawConn, stream uint32, _ int32) {
		if stream == 1 { // later requests arrived after the GOAWAY
			c.ok(stream)
			c.frame(frameGoAway, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0)
		}
	})
	transport := s.transport(t)
	for range 20 {
		g.Expect(post(t, transport, s.url, strings.NewReader("body"))).To(Succeed())
	}
	g.Expect(s.conns.Load()).To(BeEquivalentTo(20))
}

// For a server that allows few streams the pool opens as many connections as needed, also if the
// server's settings arrive late. net/http sends nothing on a connection on which more room was
// reserved than the settings allow.
func TestFewStreamsPerConnection(t *testing.T) {
	for name, late := range map[string]bool{"settings at once": false, "late settings": true} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newRawH2(t, func(*rawConn, uint32, int32) {})
			s.answer = func(c *rawConn, stream uint32, _ int32) {
				go func() {
					<-c.settingsSent
					c.frame(frameHeaders, flagEndHeaders, stream, 0x88) // the response does not end
				}()
			}
			s.settings = []byte{0, settingMaxStreams, 0, 0, 0, 5}
			if late {
				s.delay = make(chan struct{})
				time.AfterFunc(300*time.Millisecond, func() { close(s.delay) })
			}
			transport := s.transport(t)
			ctx, cancel := context.WithCancel(t.Context())
			var asking, open sync.WaitGroup
			for range 40 {
				open.Add(1)
				asking.Go(func() {
					req, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
					resp, err := transport.RoundTrip(req)
					open.Done()
					if err != nil {
						t.Error(err)
						return
					}
					<-ctx.Done()
					_ = resp.Body.Close()
				})
			}
			all := make(chan struct{})
			go func() { open.Wait(); close(all) }()
			g.Eventually(all, 20*time.Second).Should(BeClosed())
			g.Expect(s.conns.Load()).To(And(BeNumerically(">=", 8), BeNumerically("<=", 10)))
			cancel()
			asking.Wait()
		})
	}
}

// Requests that are cancelled while they wait, or just as they receive room, leave no reservation
// behind.
func TestRequestsThatAreGivenUp(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(w, req.Body)
	}))
	server.EnableHTTP2 = true
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 4}
	server.StartTLS()
	t.Cleanup(server.Close)
	transport := newTransport(t, server.URL)
	var asking sync.WaitGroup
	for worker := range 20 {
		asking.Go(func() {
			for n := range 100 {
				ctx, cancel := context.WithCancel(t.Context())
				if (worker+n)%7 == 0 {
					time.AfterFunc(time.Duration(n)*10*time.Microsecond, cancel)
				}
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, bytes.NewReader([]byte("body")))
				if resp, err := transport.RoundTrip(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				} else if ctx.Err() == nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	asking.Wait()
	pool := transport.http2
	g.Eventually(func() (inFlight int) {
		pool.mu.Lock()
		defer pool.mu.Unlock()
		for _, conn := range pool.conns {
			inFlight += conn.InFlight()
		}
		return inFlight
	}).WithTimeout(20 * time.Second).Should(BeZero())
	g.Expect(pool.waiting.Load()).To(BeZero())
}
