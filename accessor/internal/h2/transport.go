package h2

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/util/connrotation"

	"github.com/latchkey-dev/latchkey/accessor/internal/fencedconn"
	"github.com/latchkey-dev/latchkey/internal/term"
)

const (
	tcpTimeout       = 30 * time.Second // for a TCP dial
	handshakeTimeout = 10 * time.Second
	idleTimeout      = 90 * time.Second // for a TCP connection without requests
	pingAfter        = 30 * time.Second // time without a frame; the same as in client-go
	pingTimeout      = 15 * time.Second
	maxSends         = 6 // attempts to send one request that the server did not process
)

// Transport carries requests to one API server over its own TCP connections. With HTTP/2 they are
// dialed one at a time, and requests that the server did not process are sent again. Transport uses
// HTTP/1.1 without TLS, behind a proxy, for a server without HTTP/2, and for a request that
// upgrades its connection. Its methods may be called from any goroutine.
type Transport struct {
	http1            *http.Transport
	http2            *pool                // nil if HTTP/2 is not available
	http2Unsupported atomic.Bool          // the server does not speak HTTP/2
	dialer           *connrotation.Dialer // tracks the open TCP connections
	life             context.Context      // ends with Close
	end              context.CancelFunc
}

// New returns a transport for the server at that address. It does no I/O and starts no goroutine.
// The caller must close it.
//
// proxy, if set, is the proxy that requests go by: http, https or socks5, with or without a user.
// Otherwise the environment decides. An https proxy is verified by the authorities of the system,
// and not by those of the server, and gets no client certificate.
func New(server *url.URL, config *tls.Config, proxy *url.URL) *Transport {
	environment, secure := http.ProxyFromEnvironment, (*tls.Config)(nil)
	if proxy != nil {
		if proxy.Scheme == "https" { // net/http would use the TLS settings of the server
			secure = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: proxy.Hostname()}
			proxy = withinTLS(proxy)
		}
		environment = http.ProxyURL(proxy)
	}
	t := &Transport{dialer: connrotation.NewDialer(
		func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{Timeout: tcpTimeout, KeepAlive: 30 * time.Second}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			if secure != nil {
				if conn, err = shakeHands(ctx, conn, secure, "the proxy"); err != nil {
					return nil, err
				}
			}
			return fencedconn.Wrap(ctx, conn), nil // below the dialer, which closes all in the end
		})}
	t.life, t.end = context.WithCancel(context.Background())
	// A transport of our own, not client-go's shared one, so that closing it affects no other
	// client.
	t.http1 = utilnet.SetTransportDefaults(&http.Transport{
		Proxy:               environment,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: handshakeTimeout,
		MaxIdleConnsPerHost: 25,
		DialContext:         t.dial,
	})
	if t.mayUseHTTP2(server) {
		t.http2 = t.newHTTP2(server, config)
	}
	return t
}

// mayUseHTTP2 reports whether HTTP/2 is worth a try: with TLS, without a proxy.
func (t *Transport) mayUseHTTP2(server *url.URL) bool {
	proxy, err := t.http1.Proxy(&http.Request{URL: server})
	return err == nil && proxy == nil && server.Scheme == "https" && !isHTTP2Disabled()
}

// newHTTP2 returns the pool of the HTTP/2 connections.
func (t *Transport) newHTTP2(server *url.URL, config *tls.Config) *pool {
	config = config.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config.NextProtos = []string{"h2", "http/1.1"}
	if config.ServerName == "" {
		config.ServerName = server.Hostname()
	}
	// HTTP/2 needs a separate transport. The transport with client-go's defaults creates
	// connections of another implementation, whose errors cannot be distinguished.
	dialer := &http.Transport{
		DialTLSContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return dialTLS(ctx, t.dial, address, config)
		},
		Protocols:       new(http.Protocols),
		HTTP2:           &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		IdleConnTimeout: idleTimeout,
	}
	dialer.Protocols.SetHTTP2(true)
	address := server.Host
	if server.Port() == "" {
		address += ":"
	}
	return newPool(t.life, address, func(ctx context.Context) (*http.ClientConn, error) {
		return dialer.NewClientConn(ctx, "https", address)
	})
}

// Close ends the open TCP connections and prevents new ones.
func (t *Transport) Close() {
	t.end()
	t.http1.CloseIdleConnections()
	t.dialer.CloseAll() // also connections during the handshake, and those that end a cancelled stream
}

// dial opens a TCP connection that ends with the transport. net/http continues to dial after the
// request that needs the connection was cancelled, so the transport may be closed when the dial
// succeeds.
func (t *Transport) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, guard := fencedconn.WithGuard(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.life, cancel)()
	conn, err := t.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if t.life.Err() != nil {
		_ = conn.Close()
		return nil, errors.Errorf("dialing %s: the transport is closed", address)
	}
	return fencedconn.Mark(conn, guard), nil
}

// isHTTP2Disabled reports whether the environment switches HTTP/2 off: for every client of
// client-go, or for every client of net/http.
func isHTTP2Disabled() bool {
	return os.Getenv("DISABLE_HTTP2") != "" || strings.Contains(os.Getenv("GODEBUG"), "http2client=0")
}

// errNoHTTP2 is the error of a dial to a server that does not speak HTTP/2.
var errNoHTTP2 = errors.New("the server does not speak HTTP/2")

// dialTLS opens a connection for HTTP/2.
func dialTLS(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error),
	address string, config *tls.Config) (net.Conn, error) {
	plain, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn, err := shakeHands(ctx, plain, config, address)
	if err != nil {
		return nil, err
	}
	if conn.ConnectionState().NegotiatedProtocol != "h2" {
		_ = conn.Close()
		return nil, errNoHTTP2
	}
	return conn, nil
}

// shakeHands returns the connection with TLS. If that fails, it closes the connection.
func shakeHands(ctx context.Context, plain net.Conn, config *tls.Config, with string) (*tls.Conn, error) {
	conn := tls.Client(plain, config)
	handshake, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(handshake); err != nil {
		_ = plain.Close()
		return nil, errors.Wrapf(err, "TLS handshake with %s", with)
	}
	return conn, nil
}

// withinTLS returns the URL of an https proxy for connections that have TLS already.
func withinTLS(proxy *url.URL) *url.URL {
	plain := *proxy
	plain.Scheme = "http"
	if plain.Port() == "" {
		plain.Host = net.JoinHostPort(plain.Hostname(), "443")
	}
	return &plain
}

// RoundTrip implements http.RoundTripper. RoundTrip sends a request again if the server did not
// process it.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.http2 == nil || t.http2Unsupported.Load() || req.Header.Get("Upgrade") != "" {
		return t.roundTripHTTP1(req)
	}
	body := newReplayable(req)
	for sends := 1; ; sends++ {
		conn, err := t.http2.acquire(req.Context())
		if err != nil {
			if errors.Is(err, errNoHTTP2) && body.rewind() == nil { // nothing was sent
				t.http2Unsupported.Store(true)
				body.sent()
				return t.roundTripHTTP1(body.attach(req))
			}
			body.close()
			return nil, err
		}
		resp, err := t.send(conn, body.attach(req))
		if err == nil {
			body.sent()
			resp.Request = req
			return resp, nil
		}
		if !isUnprocessed(err) || req.Context().Err() != nil || sends == maxSends || body.rewind() != nil {
			body.close()
			return nil, errors.Cause(err)
		}
		if ended := sleep(req.Context(), sends); ended != nil {
			body.close()
			return nil, errors.Wrapf(ended, "waiting to send a request again (%s)", err)
		}
	}
}

func (t *Transport) roundTripHTTP1(req *http.Request) (*http.Response, error) {
	traced, hasReturned := fencedconn.GuardHTTP1(req)
	defer hasReturned()
	return t.http1.RoundTrip(traced)
}

// sleep waits before a request is sent again. Before the second send there is no delay. Then the
// delay is 1 s, doubled each time, with jitter.
func sleep(ctx context.Context, sends int) error {
	if sends == 1 {
		return nil
	}
	d := time.Second << (sends - 2)
	timer := time.NewTimer(d + rand.N(d/4))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// send sends a request on a connection that has room for it.
func (t *Transport) send(conn *clientConn, req *http.Request) (*http.Response, error) {
	var headersSent, notified atomic.Bool
	// notifySent lets the next request send its headers. net/http may send the headers of a
	// cancelled request after RoundTrip has returned.
	notifySent := func() {
		if !notified.Swap(true) {
			t.http2.sent(conn)
		}
	}
	use := conn.guard.Begin(term.Of(req.Context()))
	trace := &httptrace.ClientTrace{WroteHeaders: func() {
		headersSent.Store(true)
		notifySent()
	}}
	if use != nil {
		trace.WroteRequest = func(httptrace.WroteRequestInfo) { use.WroteRequest() }
	}
	resp, err := conn.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	use.HasReturned()
	notifySent()
	answeredBefore := t.http2.finished(conn, err == nil)
	if err != nil && !headersSent.Load() && answeredBefore && (conn.Err() != nil || err.Error() == connNotUsable) {
		return nil, &unprocessedError{err}
	}
	return resp, err
}

// unprocessedError is the error of a request that was not sent because its connection had just
// ended.
type unprocessedError struct{ cause error }

func (e *unprocessedError) Error() string { return e.cause.Error() }
func (e *unprocessedError) Cause() error  { return e.cause }
func (e *unprocessedError) Unwrap() error { return e.cause }

// streamError has the fields of net/http's HTTP/2 stream errors. errors.As copies those errors into
// any struct with these fields.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (streamError) Error() string { return "stream error" }

const (
	refusedStream = 7 // RFC 9113, section 7
	// gracefulShutdown is the error of a request whose stream ID is above the last stream ID in the
	// server's GOAWAY. net/http exports no type for the error. If the text changes, such requests
	// are no longer retried, but no request is retried wrongly.
	gracefulShutdown = "http2: Transport received Server's graceful shutdown GOAWAY"
	// connNotUsable is the error of a request whose connection got a GOAWAY, or ended, before the
	// request was sent.
	connNotUsable = "http2: client conn not usable"
)

// isUnprocessed reports whether a request that failed with err was certainly not processed. Either
// the request was not sent, or the server reports that it did not process the request (RFC 9113,
// sections 6.8 and 8.7).
func isUnprocessed(err error) bool {
	var unprocessed *unprocessedError
	var stream streamError
	return errors.As(err, &unprocessed) || errors.As(err, &stream) && stream.Code == refusedStream ||
		err.Error() == gracefulShutdown
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (t *Transport) WrappedRoundTripper() http.RoundTripper { return t.http1 }
