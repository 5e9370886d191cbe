package brief

import (
	"io"
	"net/http"
	"strings"
)

const (
	// maxAnswer is how much of the answer to a question is read: an API server's is a few KiB.
	maxAnswer = 64 << 10
	// maxText is how long a text is that is shown to a person.
	maxText = 1024
)

// Limit returns a RoundTripper that reads no more than 64 KiB of what a server sends.
func Limit(next http.RoundTripper) http.RoundTripper { return limited{next} }

type limited struct{ next http.RoundTripper }

func (l limited) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	return resp, nil
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (l limited) WrappedRoundTripper() http.RoundTripper { return l.next }

// Shorten cuts a text after 1 KiB: nobody would read the rest.
func Shorten(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}
