package targets

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/net/http2"
)

const (
	tcpTimeout       = 30 * time.Second // of net/http's dials
	handshakeTimeout = 10 * time.Second
	dialTimeout      = 10 * time.Second // of ours, handshake included
	maxDials         = 3                // at the same time
	dialPatience     = time.Second      // before another dial is tried beside one that hangs
	lookAgain        = 50 * time.Millisecond
	idleTimeout      = 90 * time.Second // of a TCP connection without requests
	pingAfter        = 30 * time.Second // without a frame, as client-go has it
	pingTimeout      = 15 * time.Second
)

// wire is the RoundTripper of a target: HTTP/2, over connections that are dialed one at a time. Where that is not to be
// had (no TLS, a proxy, a server without HTTP/2, a request that upgrades its connection) it is net/http's own transport.
type wire struct {
	http1   *http.Transport
	http2   *http2.Transport // nil where it is not to be had
	refused atomic.Bool      // the server does not speak HTTP/2
}

// newWire makes a wire that dials through http1.DialContext.
func newWire(life context.Context, server *http.Request, http1 *http.Transport) *wire {
	w := &wire{http1: http1}
	// client-go lets HTTP/2 be switched off by the environment (DISABLE_HTTP2), and then has not set it up.
	_, allowed := http1.TLSNextProto[http2.NextProtoTLS]
	if proxy, err := http1.Proxy(server); err != nil || proxy != nil || server.URL.Scheme != "https" || !allowed {
		return w
	}
	config := http1.TLSClientConfig.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config.NextProtos = []string{http2.NextProtoTLS, "http/1.1"}
	if config.ServerName == "" {
		config.ServerName = server.URL.Hostname()
	}
	w.http2 = &http2.Transport{IdleConnTimeout: idleTimeout, ReadIdleTimeout: pingAfter, PingTimeout: pingTimeout}
	w.http2.ConnPool = &connections{life: life, make: w.http2.NewClientConn, dial: func(ctx context.Context, address string) (net.Conn, error) {
		return dialTLS(ctx, http1.DialContext, address, config)
	}}
	return w
}

// errNoHTTP2 is why a connection to a server cannot be used.
var errNoHTTP2 = errors.New("the server does not speak HTTP/2")

// dialTLS opens a connection for HTTP/2.
func dialTLS(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), address string, config *tls.Config) (net.Conn, error) {
	plain, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(plain, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, errors.Wrapf(err, "TLS handshake with %s", address)
	}
	if conn.ConnectionState().NegotiatedProtocol != http2.NextProtoTLS {
		_ = conn.Close()
		return nil, errNoHTTP2
	}
	return conn, nil
}

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	if w.http2 == nil || w.refused.Load() || req.Header.Get("Upgrade") != "" {
		return w.http1.RoundTrip(req)
	}
	resp, err := w.http2.RoundTrip(req)
	var none *noConnection
	if !errors.As(err, &none) {
		return resp, err
	}
	if errors.Is(err, errNoHTTP2) { // nothing was sent
		w.refused.Store(true)
		return w.http1.RoundTrip(req)
	}
	if req.Body != nil {
		_ = req.Body.Close() // a RoundTripper closes the body, also on errors
	}
	return nil, err
}

// noConnection is why there is no connection to send a request on.
type noConnection struct{ cause error }

func (n *noConnection) Error() string { return n.cause.Error() }
func (n *noConnection) Unwrap() error { return n.cause }

// WrappedRoundTripper lets client-go find the TLS settings below.
func (w *wire) WrappedRoundTripper() http.RoundTripper { return w.http1 }

// connections is an http2.ClientConnPool that dials only when there is no room on the connections that it has, and then
// one at a time, unless that hangs. net/http dials for every request that finds no room: fifty requests at once open
// fifty connections, of which the first would have carried a hundred. Who waits takes whatever comes first: a dial that
// ends, room on an old connection, or the end of its own context.
type connections struct {
	life context.Context // of the target
	dial func(ctx context.Context, address string) (net.Conn, error)
	make func(net.Conn) (*http2.ClientConn, error)

	mu    sync.Mutex
	open  []*http2.ClientConn // guarded by mu; earlier ones are filled first, so that later ones fall idle and close
	dials []*dialCall         // guarded by mu; under way, oldest first
}

// dialCall is a dial under way.
type dialCall struct {
	begun time.Time
	done  chan struct{}
	err   error // written before done is closed
}

var _ http2.ClientConnPool = (*connections)(nil)

// GetClientConn implements http2.ClientConnPool.
func (p *connections) GetClientConn(req *http.Request, address string) (*http2.ClientConn, error) {
	var failed error
	for {
		conn, call := p.reserve(address, failed == nil)
		switch {
		case conn != nil:
			return conn, nil
		case call == nil:
			return nil, &noConnection{failed}
		}
		again := time.NewTimer(lookAgain)
		select {
		case <-call.done:
			failed = call.err
		case <-again.C:
		case <-req.Context().Done():
			again.Stop()
			return nil, &noConnection{errors.Wrapf(context.Cause(req.Context()), "waiting for a connection to %s", address)}
		}
		again.Stop()
	}
}

// reserve takes room for a request on a connection, or else returns the dial to wait for: one under way, or one that it
// starts if there is none, or the others hang. After a failure it starts none.
func (p *connections) reserve(address string, start bool) (*http2.ClientConn, *dialCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.open {
		if conn.ReserveNewRequest() {
			return conn, nil
		}
	}
	if n := len(p.dials); start && (n == 0 || n < maxDials && time.Since(p.dials[n-1].begun) > dialPatience) {
		p.open = slices.DeleteFunc(p.open, func(conn *http2.ClientConn) bool { return conn.State().Closed })
		call := &dialCall{begun: time.Now(), done: make(chan struct{})}
		p.dials = append(p.dials, call)
		go p.run(call, address)
	}
	if len(p.dials) == 0 {
		return nil, nil
	}
	return nil, p.dials[len(p.dials)-1]
}

// run dials. It belongs to nobody's request, for others may wait; it ends with the target.
func (p *connections) run(call *dialCall, address string) {
	ctx, cancel := context.WithTimeout(p.life, dialTimeout)
	defer cancel()
	raw, err := p.dial(ctx, address)
	var conn *http2.ClientConn
	if err == nil {
		conn, err = p.make(raw)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.open = append(p.open, conn)
	}
	call.err = err
	p.dials = slices.DeleteFunc(p.dials, func(other *dialCall) bool { return other == call })
	close(call.done)
}

// MarkDead implements http2.ClientConnPool.
func (p *connections) MarkDead(dead *http2.ClientConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = slices.DeleteFunc(p.open, func(conn *http2.ClientConn) bool { return conn == dead })
}
