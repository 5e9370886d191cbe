package untrusted

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/pkg/errors"
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

// Budget bounds several answers together.
type Budget struct {
	Requests int64
	Bytes    int64
	Values   int64 // of JSON, by what separates them: a short text may hold many, and each takes memory
}

// LimitAll returns a RoundTripper for as many requests, whose answers are of no more than that
// together: reading on fails. It may be used from any goroutine.
func LimitAll(next http.RoundTripper, limit Budget) http.RoundTripper {
	b := &budget{next: next, limit: limit}
	b.requests.Store(limit.Requests)
	b.bytes.Store(limit.Bytes)
	b.values.Store(limit.Values)
	return b
}

// budget is what is left of a Budget.
type budget struct {
	next                    http.RoundTripper
	limit                   Budget
	requests, bytes, values atomic.Int64
}

func (b *budget) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.requests.Add(-1) < 0 {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper closes the body, also on errors
		}
		return nil, errors.Errorf("the API server's answers ask for more than %d requests", b.limit.Requests)
	}
	resp, err := b.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &budgetedBody{ReadCloser: resp.Body, budget: b}
	return resp, nil
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (b *budget) WrappedRoundTripper() http.RoundTripper { return b.next }

// budgetedBody is a body that counts towards a budget.
type budgetedBody struct {
	io.ReadCloser
	budget *budget
}

func (b *budgetedBody) Read(p []byte) (int, error) {
	switch {
	case b.budget.bytes.Load() <= 0:
		return 0, errors.Errorf("the API server's answers exceed %d bytes", b.budget.limit.Bytes)
	case b.budget.values.Load() <= 0:
		return 0, errors.Errorf("the API server's answers exceed %d values", b.budget.limit.Values)
	}
	n, err := b.ReadCloser.Read(p)
	b.budget.bytes.Add(-int64(n))
	b.budget.values.Add(-int64(bytes.Count(p[:n], []byte{','}) + bytes.Count(p[:n], []byte{'{'}) +
		bytes.Count(p[:n], []byte{'['})))
	return n, err
}

// maxQuoted is how much is shown of a name that is none.
const maxQuoted = 64

// Quote quotes a name, in Go's syntax; a long one is cut.
func Quote(name string) string {
	if len(name) <= maxQuoted {
		return strconv.Quote(name)
	}
	return strconv.Quote(strings.ToValidUTF8(name[:maxQuoted], "")+"…") + " (" + strconv.Itoa(len(name)) + " bytes)"
}

// Shorten cuts a text after 1 KiB: nobody would read the rest.
func Shorten(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}
