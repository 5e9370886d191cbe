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

// bearer is a RoundTripper that sends every request with the token of one identity and with nothing else that
// could name a user.
type bearer struct {
	token func(context.Context) (secret, error)
	next  http.RoundTripper
}

func (b *bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := b.token(req.Context())
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper closes the body, also on errors
		}
		return nil, err
	}
	authenticated := utilnet.CloneRequest(req)
	stripIdentity(authenticated.Header)
	authenticated.Header.Set("Authorization", "Bearer "+token())
	resp, err := b.next.RoundTrip(authenticated)
	if err != nil {
		if text := err.Error(); token.redact(text) != text { // a server that speaks no HTTP is quoted
			err = errors.New(token.redact(text))
		}
		return nil, err
	}
	resp.Request = req // and not the one that carries the token
	redactResponse(resp, token)
	return resp, nil
}

// maxRedacted is how much of the body of an error is looked through, and kept.
const maxRedacted = 1 << 20

// redactResponse removes the token from what a server, or a proxy before it, quotes of the request: headers, which
// client-go logs as warnings, and the bodies of errors, whose text ends in errors, states and logs.
func redactResponse(resp *http.Response, token secret) {
	for _, values := range resp.Header {
		for i := range values {
			values[i] = token.redact(values[i])
		}
	}
	if resp.StatusCode < http.StatusBadRequest {
		return
	}
	resp.Body = &redactedBody{body: resp.Body, token: token}
	resp.ContentLength = -1 // it may get shorter
	resp.Header.Del("Content-Length")
}

// redactedBody reads a whole body, up to maxRedacted, and serves it without the token.
type redactedBody struct {
	body  io.ReadCloser
	token secret
	text  *strings.Reader // nil before the first Read
	err   error           // of reading body, nil if it ended
}

func (r *redactedBody) Read(p []byte) (int, error) {
	if r.text == nil {
		content, err := io.ReadAll(io.LimitReader(r.body, maxRedacted))
		r.text, r.err = strings.NewReader(r.token.redact(string(content))), err
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

// stripIdentity removes every header by which a request could claim to be somebody.
func stripIdentity(header http.Header) {
	for key := range header {
		canonical := http.CanonicalHeaderKey(key)
		if canonical == "Authorization" || canonical == "Cookie" || strings.HasPrefix(canonical, "Impersonate-") || strings.HasPrefix(canonical, "X-Remote-") {
			delete(header, key)
		}
	}
	// A WebSocket may offer a token as a subprotocol.
	const protocols = "Sec-Websocket-Protocol"
	if offered, ok := header[protocols]; ok {
		header[protocols] = slices.DeleteFunc(slices.Clone(offered), func(value string) bool {
			return strings.Contains(value, "base64url.bearer.authorization.k8s.io.")
		})
	}
}
