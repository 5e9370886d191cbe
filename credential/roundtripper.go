package credential

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/pkg/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// secret is a token behind a closure: fmt prints a func as an address, whatever the verb.
type secret func() string

func newSecret(token string) secret { return func() string { return token } }

// redact returns text without the secret.
func (s secret) redact(text string) string {
	if s == nil || s() == "" {
		return text
	}
	return strings.ReplaceAll(text, s(), "[redacted]")
}

// tokenSource is where a bearer gets its tokens.
type tokenSource interface {
	// get returns a token to send.
	get(context.Context) (*issued, error)
	// refused returns another one than the API server refused, nil if there is none.
	refused(context.Context, *issued) *issued
}

// bearer is a RoundTripper that sends every request with the token of one identity and with nothing
// else that could name a user. A request that is refused with a 401 is sent once more if there is a
// newer token. So a write may be sent twice but is applied once: a 401 of an API server says that
// the request was not applied (RFC 9110, section 15.5.2). What runs behind its proxy may mean
// something else by it.
type bearer struct {
	tokens tokenSource
	next   http.RoundTripper
}

func (b *bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := b.tokens.get(req.Context())
	if err != nil {
		closeBody(req)
		return nil, err
	}
	resp, err := b.send(req, token)
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		return resp, err
	}
	again, ok := replay(req)
	if !ok || mayHaveBeenApplied(req) {
		return resp, nil
	}
	newer := b.tokens.refused(req.Context(), token)
	if newer == nil {
		closeBody(again)
		return resp, nil
	}
	drain(resp)
	resp, err = b.send(again, newer)
	if resp != nil {
		resp.Request = req
	}
	return resp, err
}

// send sends the request as the token's identity.
func (b *bearer) send(req *http.Request, token *issued) (*http.Response, error) {
	authenticated := cloneForIdentity(req)
	authenticated.Header.Set("Authorization", "Bearer "+token.value())
	resp, err := b.next.RoundTrip(authenticated)
	if err != nil {
		if text := err.Error(); token.value.redact(text) != text { // a server that speaks no HTTP is quoted
			err = errors.New(token.value.redact(text))
		}
		return nil, err
	}
	resp.Request = req // and not the one that carries the token
	redactResponse(resp, token.value.redact)
	return resp, nil
}

// replay returns the request with its body from the start, and whether that is possible.
func replay(req *http.Request) (*http.Request, bool) {
	if req.Body == nil || req.Body == http.NoBody {
		return req, true
	}
	if req.GetBody == nil {
		return nil, false
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, false
	}
	again := utilnet.CloneRequest(req)
	again.Body = body
	return again, true
}

// mayHaveBeenApplied reports whether the request is a write through the API server's proxy to a
// Pod, Service or Node.
func mayHaveBeenApplied(req *http.Request) bool {
	return req.Method != http.MethodGet && req.Method != http.MethodHead &&
		slices.Contains(strings.Split(req.URL.Path, "/"), "proxy")
}

// closeBody closes the body of a request that is not sent, as a RoundTripper must.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// drain reads the rest of an answer that nobody wants, so that its connection can be used again.
func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrained)
	_ = resp.Body.Close()
}

// maxDrained is how much of an unwanted answer is read.
const maxDrained = 64 << 10

// maxRedacted is how much of the body of an error is looked through, and kept.
const maxRedacted = 1 << 20

// redactResponse removes the secret from what a server, or a proxy before it, quotes of the
// request: headers, which client-go logs as warnings, the bodies of errors, whose text ends in
// errors, states and logs, and the answers to the questions who we are and what we may, which do
// too. Trailers are dropped.
func redactResponse(resp *http.Response, redact func(string) string) {
	for _, values := range resp.Header {
		for i := range values {
			values[i] = redact(values[i])
		}
	}
	resp.Status = redact(resp.Status)
	resp.Trailer = nil
	if resp.StatusCode < http.StatusBadRequest && (resp.Request == nil || !isReview(resp.Request.URL.Path)) {
		return
	}
	resp.Body = &redactedBody{body: resp.Body, redact: redact}
	resp.ContentLength = -1 // it may get shorter
	resp.Header.Del("Content-Length")
}

// isReview reports whether the answer is words of the server about who we are and what we may,
// which are shown.
func isReview(path string) bool {
	return strings.Contains(path, "/apis/authentication.k8s.io/") || strings.Contains(path, "/apis/authorization.k8s.io/")
}

// redactedBody reads a whole body, up to maxRedacted, and serves it without the secret.
type redactedBody struct {
	body   io.ReadCloser
	redact func(string) string
	text   *strings.Reader // nil before the first Read
	err    error           // of reading body, nil if it ended
}

func (r *redactedBody) Read(p []byte) (int, error) {
	if r.text == nil {
		content, err := io.ReadAll(io.LimitReader(r.body, maxRedacted))
		r.text, r.err = strings.NewReader(r.redact(string(content))), err
	}
	n, err := r.text.Read(p)
	if err == io.EOF && r.err != nil {
		err = r.err
	}
	return n, err
}

func (r *redactedBody) Close() error { return r.body.Close() }

// WrappedRoundTripper lets client-go find the TLS settings below.
func (b *bearer) WrappedRoundTripper() http.RoundTripper { return b.next }
