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

// Budget bounds several answers together.
type Budget struct {
	Requests int64
	Bytes    int64
	Values   int64 // JSON values, counted by separators: a short text may hold many, and each takes memory
}

// LimitAll returns a RoundTripper that admits limit.Requests requests and bounds the total size of
// their answers. A request or a read beyond the limit fails. The RoundTripper may be used from any
// goroutine.
func LimitAll(next http.RoundTripper, limit Budget) http.RoundTripper {
	b := &budget{next: next, limit: limit}
	b.requests.Store(limit.Requests)
	b.bytes.Store(limit.Bytes)
	b.values.Store(limit.Values)
	return b
}

// budget has the remainder of a Budget.
type budget struct {
	next                    http.RoundTripper
	limit                   Budget
	requests, bytes, values atomic.Int64
}

func (b *budget) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.requests.Add(-1) < 0 {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper must close the body, also on errors
		}
		return nil, errors.Errorf("the API server's answers require more than %d requests", b.limit.Requests)
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
