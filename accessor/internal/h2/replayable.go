package h2

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"
)

// replayable is a request body that can be sent again: with GetBody, or as long as nothing was read
// from the body.
type replayable struct {
	original io.ReadCloser
	getBody  func() (io.ReadCloser, error)
	current  *unreadBody
}

// errBodyRead is the error of a request that cannot be sent again.
var errBodyRead = errors.New("the request body was read, and the request has no GetBody")

func newReplayable(req *http.Request) *replayable {
	r := &replayable{original: req.Body, getBody: req.GetBody}
	if r.original != nil && r.original != http.NoBody {
		r.current = &unreadBody{body: r.original}
	}
	return r
}

// attach returns req with the body to send.
func (r *replayable) attach(req *http.Request) *http.Request {
	if r.current == nil {
		return req
	}
	attached := *req
	attached.Body = r.current
	return &attached
}

// rewind prepares the body to be sent again.
func (r *replayable) rewind() error {
	switch {
	case r.current == nil:
		return nil
	case !r.current.read.Load():
		r.current = &unreadBody{body: r.current.body}
		return nil
	case r.getBody == nil:
		return errBodyRead
	}
	body, err := r.getBody()
	if err != nil {
		return err
	}
	r.close()
	r.current = &unreadBody{body: body}
	return nil
}

// sent records that the body is not sent again. If Close was already called, sent closes the body.
func (r *replayable) sent() {
	if r.current != nil {
		r.current.release()
	}
}

// close closes the body, once. A RoundTripper closes the body, also on errors.
func (r *replayable) close() {
	if r.current != nil {
		r.current.release()
		_ = r.current.Close()
	}
}

// unreadBody is a body whose Close takes effect only after a read or a release. Until then the body
// may be sent again.
type unreadBody struct {
	body io.ReadCloser
	read atomic.Bool

	mu             sync.Mutex
	released       bool // guarded by mu
	closeRequested bool // guarded by mu; Close was called
	closed         bool // guarded by mu; body was closed
}

func (b *unreadBody) Read(p []byte) (int, error) {
	b.read.Store(true)
	return b.body.Read(p)
}

func (b *unreadBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closeRequested = true
	return b.closeLocked()
}

func (b *unreadBody) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = true
	_ = b.closeLocked()
}

// closeLocked closes the body if Close was called and the body cannot be sent again.
func (b *unreadBody) closeLocked() error {
	if b.closed || !b.closeRequested || !b.released && !b.read.Load() {
		return nil
	}
	b.closed = true
	return b.body.Close()
}
