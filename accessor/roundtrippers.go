package accessor

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/pkg/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/util/flowcontrol"
)

// neverRedirect hands redirects to the caller: an API server does not redirect its clients, what
// runs behind it may.
func neverRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// failingRoundTripper is a RoundTripper that sends nothing.
type failingRoundTripper struct{ err error }

func (r failingRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	return nil, r.err
}

// lifetimeRoundTripper is the RoundTripper nearest to the callers of a connection. It fails when
// the connection has ended, ends what is under way with it, names the extension to the API server,
// and notes what the answers mean.
type lifetimeRoundTripper struct {
	conn *connection
	next http.RoundTripper
}

func (g *lifetimeRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := g.conn.err(); err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper closes the body, also on errors
		}
		return nil, err
	}
	caller := req
	ctx, cancel := context.WithCancelCause(req.Context())
	stop := context.AfterFunc(g.conn.life, func() { cancel(context.Cause(g.conn.life)) })
	release := func() {
		stop()
		cancel(nil)
	}
	if req.Header.Get("User-Agent") == "" {
		req = utilnet.CloneRequest(req)
		req.Header.Set("User-Agent", g.conn.config.UserAgent)
	}
	resp, err := g.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		release()
		if ended := g.conn.err(); ended != nil {
			return nil, ended
		}
		return nil, err
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		g.conn.unauthorized()
	case resp.StatusCode < http.StatusBadRequest:
		now := time.Now()
		g.conn.served.Store(&now)
	}
	if upgraded := resp.Body; resp.StatusCode == http.StatusSwitchingProtocols {
		// net/http has handed the TCP connection over, and no context ends it any more.
		stopClosing := context.AfterFunc(g.conn.life, func() { _ = upgraded.Close() })
		releaseRequest := release
		release = func() {
			stopClosing()
			releaseRequest()
		}
	}
	resp.Body = bodyWithRelease(resp.Body, release)
	resp.Request = caller // and not the one that carries the token
	return resp, nil
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (g *lifetimeRoundTripper) WrappedRoundTripper() http.RoundTripper { return g.next }

// releasingBody is a response body that calls release when it is closed.
type releasingBody struct {
	io.ReadCloser
	release func()
}

func (b *releasingBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

// releasingStream is a releasingBody that can be written to, as after an upgrade of the protocol.
type releasingStream struct {
	releasingBody
	io.Writer
}

func bodyWithRelease(body io.ReadCloser, release func()) io.ReadCloser {
	if writer, ok := body.(io.Writer); ok {
		return &releasingStream{releasingBody{body, release}, writer}
	}
	return &releasingBody{body, release}
}

// limiter is the identity's rate limit; no request waits for it after the connection has ended.
type limiter struct {
	flowcontrol.RateLimiter
	conn *connection
}

// Wait implements flowcontrol.RateLimiter. When the connection has ended it lets the request
// through to lifetimeRoundTripper, which refuses it with the reason.
func (l *limiter) Wait(ctx context.Context) error {
	if l.conn.err() != nil || l.TryAccept() {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.conn.life, cancel)()
	if err := l.RateLimiter.Wait(ctx); err != nil && l.conn.err() == nil {
		return err
	}
	return nil
}

// identityRoundTripper is the RoundTripper that adds the connection's identity to requests, by the
// credential that it uses at that moment.
type identityRoundTripper struct {
	conn *connection
	next http.RoundTripper // reaches the target without a credential
	own  bool              // next dials by itself, so that nothing else can carry its requests
}

func (p *identityRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	now := p.conn.credential.Load()
	if now == nil { // the connection has ended since lifetimeRoundTripper looked
		return failingRoundTripper{p.conn.err()}.RoundTrip(req)
	}
	if err := now.target.Accepts(req); err != nil { // before anything is added that is not for others
		return failingRoundTripper{err}.RoundTrip(req)
	}
	if now.carrier != nil && p.own {
		return failingRoundTripper{errors.New("clients that dial by themselves, as client-go's exec and port-forward " +
			"do, cannot act with a client certificate " +
			"or by impersonation; use credentials with a token for them (ServiceAccountTokens, or a kubeconfig with a " +
			"token)")}.RoundTrip(req)
	}
	return now.roundTripper(p.next).RoundTrip(req)
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (p *identityRoundTripper) WrappedRoundTripper() http.RoundTripper { return p.next }

// dialsItself reports whether a RoundTripper is none of net/http's, under whatever wraps it.
func dialsItself(next http.RoundTripper) bool {
	for {
		switch wrapped := next.(type) {
		case *http.Transport:
			return false
		case utilnet.RoundTripperWrapper:
			next = wrapped.WrappedRoundTripper()
		default:
			return true
		}
	}
}

// userAgentRoundTripper is a RoundTripper that names the extension to the API server.
type userAgentRoundTripper struct {
	userAgent string
	next      http.RoundTripper
}

func (n userAgentRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	req = utilnet.CloneRequest(req)
	req.Header.Set("User-Agent", n.userAgent)
	return n.next.RoundTrip(req)
}
