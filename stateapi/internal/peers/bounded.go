package peers

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/pkg/errors"
)

// maxReceived is how much memory may be taken by what is received from a peer over one connection:
// its bytes, and objectSize for each object in JSON, as few bytes may be many objects. A replica
// with 10,000 extensions has a quarter of that. A peer that says more is connected anew, and so its
// lists replace what it has said before.
const (
	maxReceived = 1 << 30
	objectSize  = 512
)

// errTooMuch is why no more is received over a connection.
var errTooMuch = errors.New("it sends more than a replica has")

// bounded is a transport by which no more is received than what takes that much memory.
type bounded struct {
	http.RoundTripper
	left atomic.Int64
	full func() // called when no more is received, maybe more than once
}

func (b *bounded) isFull() bool { return b.left.Load() < 0 }

// RoundTrip implements http.RoundTripper.
func (b *bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(req)
	if err == nil {
		resp.Body = &boundedBody{resp.Body, b}
	}
	return resp, err
}

type boundedBody struct {
	io.ReadCloser
	bound *bounded
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.bound.left.Add(-int64(n+objectSize*bytes.Count(p[:n], []byte{'{'}))) < 0 {
		b.bound.full()
		return 0, errTooMuch
	}
	return n, err
}
