package target

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
	tcpTimeout       = 30 * time.Second
	handshakeTimeout = 10 * time.Second
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
	if proxy, err := http1.Proxy(server); err != nil || proxy != nil || server.URL.Scheme != "https" {
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
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
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
	if errors.Is(err, errNoHTTP2) { // nothing was sent
		w.refused.Store(true)
		return w.http1.RoundTrip(req)
	}
	return resp, err
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (w *wire) WrappedRoundTripper() http.RoundTripper { return w.http1 }

// connections is an http2.ClientConnPool that dials one connection at a time, and only when there is no room on those
// that it has. net/http dials one for every request that finds none: fifty requests at once open fifty, of which the
// first would have carried a hundred. Who waits for a dial waits no longer than its own context.
type connections struct {
	life context.Context // of the target
	dial func(ctx context.Context, address string) (net.Conn, error)
	make func(net.Conn) (*http2.ClientConn, error)

	mu      sync.Mutex
	open    []*http2.ClientConn // guarded by mu; earlier ones are filled first, so that later ones fall idle and close
	dialing *dialCall           // guarded by mu; nil if none
}

// dialCall is a dial under way.
type dialCall struct {
	done chan struct{}
	err  error // written before done is closed
}

var _ http2.ClientConnPool = (*connections)(nil)

// GetClientConn implements http2.ClientConnPool.
func (p *connections) GetClientConn(req *http.Request, address string) (*http2.ClientConn, error) {
	for {
		conn, call := p.reserve(address)
		if conn != nil {
			return conn, nil
		}
		select {
		case <-call.done:
			if call.err != nil {
				return nil, call.err
			}
		case <-req.Context().Done():
			return nil, errors.Wrapf(context.Cause(req.Context()), "waiting for a connection to %s", address)
		}
	}
}

// reserve takes room for a request on a connection, or else joins or starts a dial.
func (p *connections) reserve(address string) (*http2.ClientConn, *dialCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.open {
		if conn.ReserveNewRequest() {
			return conn, nil
		}
	}
	if p.dialing == nil {
		p.dialing = &dialCall{done: make(chan struct{})}
		go p.run(p.dialing, address)
	}
	return nil, p.dialing
}

// run dials. It belongs to nobody's request, for others may wait; it ends with the target.
func (p *connections) run(call *dialCall, address string) {
	ctx, cancel := context.WithTimeout(p.life, tcpTimeout+handshakeTimeout)
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
	p.dialing = nil
	close(call.done)
}

// MarkDead implements http2.ClientConnPool.
func (p *connections) MarkDead(dead *http2.ClientConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = slices.DeleteFunc(p.open, func(conn *http2.ClientConn) bool { return conn == dead })
}
