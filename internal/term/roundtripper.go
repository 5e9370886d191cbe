package term

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// NewRoundTripper returns a RoundTripper whose requests need the term that current returns when
// they begin: none starts after its end, and those under way end with it, streams included.
func NewRoundTripper(next http.RoundTripper, current func() *Term) http.RoundTripper {
	return &roundTripper{next: next, current: current}
}

// RoundTripper is Fence.RoundTripper for a single term: the requests do not pass when the fence
// opens again. A nil Term lets all requests pass.
func (t *Term) RoundTripper(next http.RoundTripper) http.RoundTripper {
	if t == nil {
		return next
	}
	return NewRoundTripper(next, func() *Term { return t })
}

type roundTripper struct {
	next    http.RoundTripper
	current func() *Term
}

func (r *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	term := r.current()
	if ended := term.Err(); ended != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper closes the body, also on errors
		}
		return nil, fmt.Errorf("%s %s is not sent: %w", req.Method, req.URL.Path, ended)
	}
	ctx, cancel := context.WithCancelCause(With(req.Context(), term))
	stop := context.AfterFunc(term.ctx, func() { cancel(context.Cause(term.ctx)) })
	release := func() {
		stop()
		cancel(nil)
	}
	resp, err := r.next.RoundTrip(req.WithContext(ctx))
	if closed := term.Err(); closed != nil { // also if the answer is there: what follows from it may be wrong by now
		release()
		if err == nil {
			_ = resp.Body.Close()
		}
		return nil, Interrupted(req, closed)
	}
	if err != nil {
		release()
		return nil, err
	}
	resp.Body = term.body(req, resp.Body, release)
	return resp, nil
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (r *roundTripper) WrappedRoundTripper() http.RoundTripper { return r.next }

// Interrupted returns the error of a request that was under way when it had to end because of
// cause. If the request may have changed something, the error wraps ErrOutcomeUnknown.
func Interrupted(req *http.Request, cause error) error {
	if !MayHaveChanged(req) {
		return cause
	}
	return fmt.Errorf("%s %s: %w: %w", req.Method, req.URL.Path, ErrOutcomeUnknown, cause)
}

// MayHaveChanged reports whether a request may change something at the server, by its method, or
// because it begins a stream such as that of exec.
func MayHaveChanged(req *http.Request) bool {
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, "":
		return req.Header.Get("Upgrade") != "" // exec
	}
	return true
}

// body returns a body of an answer that ends with the term.
func (t *Term) body(req *http.Request, body io.ReadCloser, release func()) io.ReadCloser {
	b := fencedBody{ReadCloser: body, term: t, request: req, release: release}
	if writer, ok := body.(io.Writer); ok { // after an upgrade of the protocol
		stop := context.AfterFunc(t.ctx, func() { _ = body.Close() }) // no context of a request ends it
		b.release = func() {
			stop()
			release()
		}
		return &fencedStream{fencedBody: b, writer: writer}
	}
	return &b
}

// fencedBody is the body of an answer.
type fencedBody struct {
	io.ReadCloser
	term    *Term
	request *http.Request
	release func()
}

// Read has a small frame: thousands of watches wait here.
func (b *fencedBody) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	if closed := b.term.Err(); closed != nil && !errors.Is(err, io.EOF) {
		return 0, Interrupted(b.request, closed)
	}
	return n, err
}

// Close implements io.Closer.
func (b *fencedBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

// fencedStream is a fencedBody that can be written to.
type fencedStream struct {
	fencedBody
	writer io.Writer
}

func (s *fencedStream) Write(p []byte) (int, error) {
	if err := s.term.Err(); err != nil {
		return 0, err
	}
	return s.writer.Write(p)
}
