package credential

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/pkg/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// secret is a token in a closure: fmt prints a func as an address, for every verb.
type secret func() string

func newSecret(token string) secret { return func() string { return token } }

// redact returns text without the secret.
func (s secret) redact(text string) string {
	if s == nil || s() == "" {
		return text
	}
	return strings.ReplaceAll(text, s(), "[redacted]")
}

// tokenSource provides the tokens of a bearer.
type tokenSource interface {
	// get returns a token for a request.
	get(context.Context) (*issuedToken, error)
	// replacement returns another token than the given one, which the API server refused; nil if
	// there is none.
	replacement(context.Context, *issuedToken) *issuedToken
	// answered is called with the status of each answer to a request with the token.
	answered(*issuedToken, int)
}

// bearer is a RoundTripper that sends every request with the token of one identity, and with no
// other header that could name a user. A request that gets a 401 is sent once more if there is a
// newer token. A write may then be sent twice, but is applied once: an API server's 401 means that
// the request was not applied (RFC 9110, section 15.5.2). A server behind the API server's proxy
// may use 401 with another meaning.
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
	repeat, ok := replay(req)
	if !ok || mayHaveBeenApplied(req) {
		return resp, nil
	}
	newer := b.tokens.replacement(req.Context(), token)
	if newer == nil {
		closeBody(repeat)
		return resp, nil
	}
	drain(resp)
	resp, err = b.send(repeat, newer)
	if resp != nil {
		resp.Request = req
	}
	return resp, err
}

// send sends the request as the token's identity.
func (b *bearer) send(req *http.Request, token *issuedToken) (*http.Response, error) {
	authenticated := cloneForIdentity(req)
	authenticated.Header.Set("Authorization", "Bearer "+token.value())
	resp, err := b.next.RoundTrip(authenticated)
	if err != nil {
		if text := err.Error(); token.value.redact(text) != text { // net/http quotes a response that is not HTTP
			err = errors.New(token.value.redact(text))
		}
		return nil, err
	}
	b.tokens.answered(token, resp.StatusCode)
	answer := redacted(resp, req, token.value.redact)
	// net/http keeps resp as long as a watch lasts. Nothing else has it, because b.next is latchkey's
	// own.
	resp.Header, resp.Request = nil, nil
	return answer, nil
}

// replay returns a copy of the request with an unread body, and whether that is possible.
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
	repeat := utilnet.CloneRequest(req)
	repeat.Body = body
	return repeat, true
}

// mayHaveBeenApplied reports whether the request is a write through the API server's proxy to a
// Pod, Service or Node. Such a write may have been applied despite a 401.
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

// drain reads the rest of an unused response, so that its TCP connection can be reused.
func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrained)
	_ = resp.Body.Close()
}

// maxDrained is the number of bytes that drain reads at most.
const maxDrained = 64 << 10

// maxRedacted is the number of bytes of an error body that are redacted and kept. The rest is
// dropped.
const maxRedacted = 1 << 20

// redacted returns the response to a request without the secret where a server, or a proxy before
// it, quotes the request:
//
//   - in headers, which client-go logs as warnings,
//   - in the bodies of errors, whose text appears in errors, states and logs,
//   - in the responses to identity and access reviews, for the same reason.
//
// Trailers are dropped. The result refers to req, and not to the request that was sent, which
// carries the secret.
//
// The result is another Response than net/http's, which net/http keeps until the body has ended,
// and to which it adds the trailers then.
func redacted(sent *http.Response, req *http.Request, redact func(string) string) *http.Response {
	resp := *sent
	sent.Request = req
	resp.Request, resp.Trailer = req, nil
	for _, values := range resp.Header {
		for i := range values {
			values[i] = redact(values[i])
		}
	}
	resp.Status = redact(resp.Status)
	// other statuses are errors to client-go
	if resp.StatusCode <= http.StatusPartialContent && !connstate.IsReview(req.URL.Path) {
		return &resp
	}
	resp.Body = &redactedBody{body: resp.Body, redact: redact}
	resp.ContentLength = -1 // redaction may make the body shorter
	resp.Header.Del("Content-Length")
	return &resp
}

// redactedBody reads a whole body, up to maxRedacted, and serves it without the secret.
type redactedBody struct {
	body   io.ReadCloser
	redact func(string) string
	text   *strings.Reader // nil until the first Read
	err    error           // of reading body, nil at its end
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

// WrappedRoundTripper lets client-go find the TLS settings of the wrapped transport.
func (b *bearer) WrappedRoundTripper() http.RoundTripper { return b.next }
