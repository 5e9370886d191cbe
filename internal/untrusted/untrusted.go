package untrusted

import (
	"io"
	"net/http"
	"strconv"
	"strings"
)

const (
	// maxAnswer is how many bytes of an answer are read: an API server's answer has a few KiB.
	maxAnswer = 64 << 10
	// maxText is the maximum length in bytes of a text that people read.
	maxText = 1024
)

// Limit returns a RoundTripper that reads at most 64 KiB of each answer.
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

// maxQuoted is how many bytes of an invalid name Quote shows.
const maxQuoted = 64

// Quote quotes a name in Go's syntax and cuts a long name.
func Quote(name string) string {
	if len(name) <= maxQuoted {
		return strconv.Quote(name)
	}
	return strconv.Quote(strings.ToValidUTF8(name[:maxQuoted], "")+"…") + " (" + strconv.Itoa(len(name)) + " bytes)"
}

// Shorten cuts a text after 1 KiB, because no reader needs more, and makes it Printable.
func Shorten(text string) string {
	if len(text) <= maxText {
		return Printable(text)
	}
	return Printable(strings.ToValidUTF8(text[:maxText], "")) + "…"
}
