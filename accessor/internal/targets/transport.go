package targets

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"github.com/pkg/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/util/connrotation"
)

// Transport carries requests to a target over its own TCP connections: those that all members
// share, or those of a client certificate. Its methods may be called from any goroutine.
type Transport struct {
	target *Target
	http1  *http.Transport
	h2     *h2Transport         // falls back to http1
	dialer *connrotation.Dialer // tracks the open TCP connections
	life   context.Context      // ends with Close
	end    context.CancelFunc
}

// newTransport returns a transport. newTransport does no I/O and starts no goroutine.
func newTransport(target *Target, config *tls.Config) *Transport {
	t := &Transport{
		target: target,
		dialer: connrotation.NewDialer(func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{Timeout: tcpTimeout, KeepAlive: 30 * time.Second}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return guarded(ctx, conn), nil // below the dialer, which closes all in the end
		}),
	}
	t.life, t.end = context.WithCancel(context.Background())
	// A transport of our own, not client-go's shared one, so that closing it affects no other
	// client.
	t.http1 = utilnet.SetTransportDefaults(&http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: handshakeTimeout,
		MaxIdleConnsPerHost: 25,
		DialContext:         t.dial,
	})
	t.h2 = newH2Transport(t.life, &http.Request{URL: target.address}, t.http1)
	return t
}

// RoundTripper returns a RoundTripper that sends requests to the server and reports the answers to
// the target.
func (t *Transport) RoundTripper() http.RoundTripper { return t.target.Observe(t.h2) }

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
	g := guardOf(ctx)
	ctx, cancel := context.WithCancel(withGuard(ctx, g))
	defer cancel()
	defer context.AfterFunc(t.life, cancel)()
	conn, err := t.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if t.life.Err() != nil {
		_ = conn.Close()
		return nil, errors.Errorf("dialing %s: the transport is closed", t.target.Host())
	}
	return &dialedConn{Conn: conn, guard: g}, nil
}
