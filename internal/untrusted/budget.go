package untrusted

import (
	"io"
	"mime"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"
)

// Budget bounds several answers in JSON together.
type Budget struct {
	Requests int64
	// AtOnce is how many requests may be under way at the same time.
	AtOnce int
	// Bytes bounds the memory for the answers: their texts, 500 bytes for each object, 2000 for each
	// element of a list, but 500 for a resource, and 40 for each other value and each verb, short name
	// or category, because a short text may hold many.
	Bytes int64
}

// LimitedRoundTripper bounds the number of its requests, how many of them are under way at a time,
// and the size of their answers in all. A request or a read beyond the limit fails, and so does a
// successful answer that is not a JSON object; an error that is none is cut after 1 KiB. It may be
// used from any goroutine.
type LimitedRoundTripper struct {
	next            http.RoundTripper
	limit           Budget
	underWay        chan struct{} // has an element for each request that is under way
	requests, bytes atomic.Int64  // what remains
	exceeded        atomic.Pointer[error]
}

// LimitAll returns a RoundTripper with the limit.
func LimitAll(next http.RoundTripper, limit Budget) *LimitedRoundTripper {
	l := &LimitedRoundTripper{next: next, limit: limit, underWay: make(chan struct{}, limit.AtOnce)}
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

// Used returns how many bytes of the budget the answers took.
func (l *LimitedRoundTripper) Used() int64 { return l.limit.Bytes - l.bytes.Load() }

func (l *LimitedRoundTripper) exceed(format string, limit int64) error {
	err := errors.Errorf(format, limit)
	l.exceeded.CompareAndSwap(nil, &err)
	return err
}

// RoundTrip implements http.RoundTripper. It waits while AtOnce requests are under way, until the
// caller has closed the body of one.
func (l *LimitedRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.begin(req)
	if err != nil && req.Body != nil {
		_ = req.Body.Close() // a RoundTripper must close the body, also on errors
	}
	return resp, err
}

func (l *LimitedRoundTripper) begin(req *http.Request) (*http.Response, error) {
	if l.requests.Add(-1) < 0 {
		return nil, l.exceed("the API server's answers require more than %d requests", l.limit.Requests)
	}
	select {
	case l.underWay <- struct{}{}:
	case <-req.Context().Done():
		return nil, errors.WithStack(req.Context().Err())
	}
	end := sync.OnceFunc(func() { <-l.underWay })
	resp, err := l.next.RoundTrip(req)
	if err != nil {
		end()
		return nil, err
	}
	body := &budgetedBody{ReadCloser: resp.Body, budget: l, end: end, begins: true}
	if body.success = resp.StatusCode/100 == 2; body.success {
		if mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil ||
			mediaType != "application/json" {
			_ = body.Close()
			return nil, errors.Errorf("the answer's media type is %s, not application/json",
				Quote(resp.Header.Get("Content-Type")))
		}
	}
	resp.Body = body
	return resp, nil
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (l *LimitedRoundTripper) WrappedRoundTripper() http.RoundTripper { return l.next }

// budgetedBody is a body that counts towards a budget.
type budgetedBody struct {
	io.ReadCloser
	budget  *LimitedRoundTripper
	end     func() // of the request
	success bool   // the answer is no error
	begins  bool   // nothing but space was read
	cut     bool   // the rest of the body is left out
	memory  jsonMemory
}

func (b *budgetedBody) Read(p []byte) (int, error) {
	if b.budget.bytes.Load() <= 0 {
		return 0, b.budget.exceed("the API server's answers exceed %d bytes of memory", b.budget.limit.Bytes)
	}
	if b.cut {
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p)
	for i := 0; b.begins && i < n; i++ {
		switch p[i] {
		case ' ', '\t', '\r', '\n':
			continue
		case '{':
		default: // a decoder that goes by the first bytes would take it for protobuf or YAML
			if b.success {
				return 0, errors.New("the answer is not a JSON object")
			}
			n, err, b.cut = min(n, maxText), nil, true // clients decode errors, too
		}
		b.begins = false
	}
	if b.budget.bytes.Add(-int64(n)-b.memory.add(p[:n])) < 0 {
		return n, b.budget.exceed("the API server's answers exceed %d bytes of memory", b.budget.limit.Bytes)
	}
	return n, err
}

func (b *budgetedBody) Close() error {
	b.end()
	return b.ReadCloser.Close()
}
