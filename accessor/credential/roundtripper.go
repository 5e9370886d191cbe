package credential

import (
	"context"
	"net/http"
	"slices"
	"strings"

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
	if resp != nil {
		resp.Request = req // and not the one that carries the token
	}
	return resp, err
}

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
