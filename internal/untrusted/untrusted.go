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
	// Bytes bounds the memory for the answers: their texts, 500 bytes for each JSON object in them,
	// and 40 for each other value, because a short text may hold many.
	Bytes int64
}

// objectBytes and valueBytes are about how much memory an object of a discovery, and any other
// value, take beside their text while a list of them grows.
const (
	objectBytes = 500
	valueBytes  = 40
)

// LimitedRoundTripper bounds the number of its requests, and the size of their answers in all. A
// request or a read beyond the limit fails. It may be used from any goroutine.
type LimitedRoundTripper struct {
	next            http.RoundTripper
	limit           Budget
	requests, bytes atomic.Int64 // what remains
	exceeded        atomic.Pointer[error]
}

// LimitAll returns a RoundTripper with the limit.
func LimitAll(next http.RoundTripper, limit Budget) *LimitedRoundTripper {
	l := &LimitedRoundTripper{next: next, limit: limit}
	l.requests.Store(limit.Requests)
	l.bytes.Store(limit.Bytes)
	return l
}

// Exceeded returns the error of the first request or read that was beyond the limit; nil if none
// was. Callers of the RoundTripper need not return it: client-go leaves out groups whose discovery
// fails.
func (l *LimitedRoundTripper) Exceeded() error {
	if exceeded := l.exceeded.Load(); exceeded != nil {
		return *exceeded
	}
	return nil
}

func (l *LimitedRoundTripper) exceed(format string, limit int64) error {
	err := errors.Errorf(format, limit)
	l.exceeded.CompareAndSwap(nil, &err)
	return err
}

// RoundTrip implements http.RoundTripper.
func (l *LimitedRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if l.requests.Add(-1) < 0 {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper must close the body, also on errors
		}
		return nil, l.exceed("the API server's answers require more than %d requests", l.limit.Requests)
	}
	resp, err := l.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &budgetedBody{ReadCloser: resp.Body, budget: l}
	return resp, nil
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (l *LimitedRoundTripper) WrappedRoundTripper() http.RoundTripper { return l.next }

// budgetedBody is a body that counts towards a budget.
type budgetedBody struct {
	io.ReadCloser
	budget *LimitedRoundTripper
}

func (b *budgetedBody) Read(p []byte) (int, error) {
	if b.budget.bytes.Load() <= 0 {
		return 0, b.budget.exceed("the API server's answers exceed %d bytes of memory", b.budget.limit.Bytes)
	}
	n, err := b.ReadCloser.Read(p)
	objects, values := bytes.Count(p[:n], []byte{'{'}), bytes.Count(p[:n], []byte{','})+bytes.Count(p[:n], []byte{'['})
	b.budget.bytes.Add(-int64(n) - objectBytes*int64(objects) - valueBytes*int64(values))
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
