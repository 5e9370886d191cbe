package credential

import (
	"context"
	"net/http"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// secret is a token behind a closure: fmt prints a func as an address, whatever the verb.
type secret func() string

func newSecret(token string) secret { return func() string { return token } }

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
	req = utilnet.CloneRequest(req)
	stripIdentity(req.Header)
	req.Header.Set("Authorization", "Bearer "+token())
	return b.next.RoundTrip(req)
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (b *bearer) WrappedRoundTripper() http.RoundTripper { return b.next }

// stripIdentity removes every header by which a request could claim to be somebody.
func stripIdentity(header http.Header) {
	for key := range header {
		canonical := http.CanonicalHeaderKey(key)
		if canonical == "Authorization" || strings.HasPrefix(canonical, "Impersonate-") || strings.HasPrefix(canonical, "X-Remote-") {
			delete(header, key)
		}
	}
}
