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

// Line carries requests to a target over TCP connections of its own: those that all members share, or those of a client
// certificate. Its methods may be called from any goroutine.
type Line struct {
	target    *Target
	transport *http.Transport
	wire      *wire                // HTTP/2 beside transport
	dialer    *connrotation.Dialer // knows the open TCP connections
	life      context.Context      // ends with Close
	end       context.CancelFunc
}

// newLine makes a line. It does no I/O and starts nothing.
func (t *Target) newLine(config *tls.Config) *Line {
	l := &Line{
		target: t,
		dialer: connrotation.NewDialer((&net.Dialer{Timeout: tcpTimeout, KeepAlive: 30 * time.Second}).DialContext),
	}
	l.life, l.end = context.WithCancel(context.Background())
	// A transport of our own, not client-go's shared one, so that closing it touches nobody else.
	l.transport = utilnet.SetTransportDefaults(&http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: handshakeTimeout,
		MaxIdleConnsPerHost: 25,
		DialContext:         l.dial,
	})
	l.wire = newWire(l.life, &http.Request{URL: t.address}, l.transport)
	return l
}

// RoundTripper sends requests to the server and lets the target learn from the answers.
func (l *Line) RoundTripper() http.RoundTripper { return l.target.Observe(l.wire) }

// Close ends the TCP connections, open and to come.
func (l *Line) Close() {
	l.end()
	l.transport.CloseIdleConnections()
	l.dialer.CloseAll() // also what is still shaking hands, or ends a cancelled stream
}

// dial opens a TCP connection that ends with the line. net/http goes on dialing after the request that wanted the
// connection was given up, so the line may be closed when the dial succeeds.
func (l *Line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.life, cancel)()
	conn, err := l.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if l.life.Err() != nil {
		_ = conn.Close()
		return nil, errors.Errorf("nobody uses %s any more", l.target.Host())
	}
	return conn, nil
}
