package connection

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/pkg/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/term"
)

// neverRedirect returns redirects to the caller. An API server does not redirect its clients; a
// backend behind it may.
func neverRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// failingRoundTripper is a RoundTripper that sends nothing.
type failingRoundTripper struct{ err error }

func (r failingRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	return nil, r.err
}

// roundTripper returns what carries the requests of the connection's clients to next. Each
// RoundTripper has one concern; the last one here is the nearest to the callers. The answers to
// probes are not observed: only the lifecycle machine judges them.
func (c *Connection) roundTripper(next http.RoundTripper, probe bool) http.RoundTripper {
	next = userAgentRoundTripper{wrapper: wrapper{next}, userAgent: c.userAgent}
	next = termRoundTripper{wrapper: wrapper{next}, conn: c}
	if !probe {
		next = observingRoundTripper{wrapper: wrapper{next}, conn: c}
	}
	next = lifetimeRoundTripper{wrapper: wrapper{next}, conn: c}
	return admittingRoundTripper{wrapper: wrapper{next}, conn: c}
}

// wrapper lets client-go find the TLS settings of what a RoundTripper wraps.
type wrapper struct{ next http.RoundTripper }

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (w wrapper) WrappedRoundTripper() http.RoundTripper { return w.next }

// admittingRoundTripper lets requests start, and counts them, as long as the connection lives and
// the extension is not given up.
type admittingRoundTripper struct {
	wrapper
	conn *Connection
}

func (r admittingRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	refused := r.conn.requests.begin()
	defer r.conn.requests.end()
	if err := cmp.Or(r.conn.Err(), refused); err != nil {
		r.conn.countIfFenced()
		return failingRoundTripper{err}.RoundTrip(req)
	}
	return r.next.RoundTrip(req)
}

// lifetimeRoundTripper ends requests, and what is read of their answers, with the connection.
type lifetimeRoundTripper struct {
	wrapper
	conn *Connection
}

func (r lifetimeRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.conn.requestContext(req))
	stop := context.AfterFunc(r.conn.life, func() { cancel(context.Cause(r.conn.life)) })
	release := func() {
		stop()
		cancel(nil)
	}
	resp, err := r.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		release()
		if ended := r.conn.Err(); ended != nil {
			r.conn.countIfFenced()
			return nil, r.conn.interrupted(req, ended)
		}
		return nil, err
	}
	if upgraded := resp.Body; resp.StatusCode == http.StatusSwitchingProtocols {
		// net/http has handed the TCP connection over, so no context ends it.
		stopClosing := context.AfterFunc(r.conn.life, func() { _ = upgraded.Close() })
		releaseRequest := release
		release = func() {
			stopClosing()
			releaseRequest()
		}
	}
	ended := r.conn.Err
	if term.MayHaveChanged(req) {
		ended = func() error {
			if err := r.conn.Err(); err != nil {
				return r.conn.interrupted(req, err)
			}
			return nil
		}
	}
	resp.Body = bodyWithRelease(resp.Body, ended, release)
	resp.Request = req // the caller's, and not the one that carries the token
	return resp, nil
}

// observingRoundTripper reports what answers say about the identity: 401s and successes. A 401
// makes lifecycle ask for a probe (requestUnauthorized); only a 401 to the probe ends the
// connection (probeFinished).
type observingRoundTripper struct {
	wrapper
	conn *Connection
}

func (r observingRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err != nil {
		return resp, err
	}
	now := time.Now()
	if r.conn.notesPermissions(resp.StatusCode, now) {
		r.conn.notePermission(req, resp, now)
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		r.conn.observers.Unauthorized()
	case exchangeOf(req, resp).Serves():
		r.conn.evidence.Served(now)
	}
	return resp, nil
}

func exchangeOf(req *http.Request, resp *http.Response) connstate.Exchange {
	return connstate.Exchange{
		Path:        req.URL.Path,
		Accept:      req.Header["Accept"],
		Upgrade:     req.Header.Get("Upgrade") != "",
		Status:      resp.StatusCode,
		ContentType: resp.Header.Get("Content-Type"),
	}
}

// termRoundTripper hands no answer out that came after the lease had ended while the request was
// under way: another replica may have acted since.
type termRoundTripper struct {
	wrapper
	conn *Connection
}

func (r termRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err == nil && r.conn.term.Err() != nil {
		ended := r.conn.Err() // first: it cancels the request, which Close may wait for
		_ = resp.Body.Close()
		return nil, ended
	}
	return resp, err
}

// userAgentRoundTripper names the extension to the API server.
type userAgentRoundTripper struct {
	wrapper
	userAgent string
}

func (r userAgentRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header.Get("User-Agent") == "" {
		req = utilnet.CloneRequest(req)
		req.Header.Set("User-Agent", r.userAgent)
	}
	return r.next.RoundTrip(req)
}

// countIfFenced counts a request that failed, if a term ended it.
func (c *Connection) countIfFenced() {
	if c.term.Err() != nil || c.requests.Refused() != nil {
		c.options.Fenced()
	}
}

// requestContext returns the context of a request, with the term that the request needs.
func (c *Connection) requestContext(req *http.Request) context.Context {
	if c.term == nil {
		return req.Context()
	}
	return term.With(req.Context(), c.term)
}

// interrupted returns the error of a request that was under way when the connection ended.
func (c *Connection) interrupted(req *http.Request, ended error) error {
	var notConnected *connstate.NotConnectedError
	if !term.MayHaveChanged(req) || !errors.As(ended, &notConnected) {
		return ended
	}
	return &connstate.NotConnectedError{
		Extension: notConnected.Extension,
		Reason:    notConnected.Reason,
		Since:     notConnected.Since,
		Err:       term.Interrupted(req, notConnected.Err),
	}
}

// releasingBody is a response body that calls release when it is closed. If the connection ends
// before the body does, the error of Read is the reason.
type releasingBody struct {
	io.ReadCloser
	ended   func() error
	release func()
}

// Read has a small frame: thousands of watches wait here.
func (b *releasingBody) Read(p []byte) (n int, err error) {
	if n, err = b.ReadCloser.Read(p); err != nil {
		return n, b.reason(err)
	}
	if ended := b.ended(); ended != nil {
		return 0, ended // what arrived too late is not handled
	}
	return n, nil
}

// reason returns why Read failed.
func (b *releasingBody) reason(err error) error {
	if !errors.Is(err, io.EOF) {
		if ended := b.ended(); ended != nil {
			return ended
		}
	}
	return err
}

func (b *releasingBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

// releasingStream is a releasingBody that can be written to, as after an upgrade of the protocol.
type releasingStream struct {
	releasingBody
	writer io.Writer
}

func (s *releasingStream) Write(p []byte) (int, error) {
	if ended := s.ended(); ended != nil {
		return 0, ended
	}
	return s.writer.Write(p)
}

func bodyWithRelease(body io.ReadCloser, ended func() error, release func()) io.ReadCloser {
	if writer, ok := body.(io.Writer); ok {
		return &releasingStream{releasingBody{body, ended, release}, writer}
	}
	return &releasingBody{body, ended, release}
}

// limiter is the identity's rate limit. No request waits for the limit after the connection has
// ended.
type limiter struct {
	flowcontrol.RateLimiter
	conn *Connection
}

// Wait implements flowcontrol.RateLimiter. After the connection has ended, Wait lets the request
// through to admittingRoundTripper, which refuses the request with the reason.
func (l *limiter) Wait(ctx context.Context) error {
	if l.conn.Err() != nil || l.TryAccept() {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.conn.life, cancel)()
	if err := l.RateLimiter.Wait(ctx); err != nil && l.conn.Err() == nil {
		return err
	}
	return nil
}

// identityRoundTripper is the RoundTripper that adds the connection's identity to requests. Each
// request uses the credential that is in use when the request is sent.
type identityRoundTripper struct {
	wrapper   // next reaches the target without a credential
	conn      *Connection
	ownDialer bool // next dials its own connections, so no other transport can carry its requests
}

func (p *identityRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	now := p.conn.credential.Load()
	if now == nil { // the connection has ended after it admitted the request
		return failingRoundTripper{p.conn.Err()}.RoundTrip(req)
	}
	if err := now.target.Accepts(req); err != nil { // before credentials are added, which other servers must not receive
		return failingRoundTripper{err}.RoundTrip(req)
	}
	if now.carrier != nil && p.ownDialer {
		return failingRoundTripper{
			errors.New("a client that opens its own connections, such as client-go's exec or port-forward, " +
				"cannot use a client certificate or impersonation; use a credential with a token for such clients " +
				"(ServiceAccountTokens, or a kubeconfig with a token)"),
		}.RoundTrip(req)
	}
	return now.RoundTripper(p.next).RoundTrip(req)
}

// dialsItself reports whether the innermost RoundTripper, below all wrappers, is not an
// http.Transport.
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
