package connection

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

var errGone = &connstate.NotConnectedError{Reason: connstate.ReasonDeleted}

// newTestConnection returns a connection without clients, for its RoundTrippers.
func newTestConnection(t testing.TB) *Connection {
	c := &Connection{
		options:   &Options{Fenced: func() {}},
		userAgent: "test",
		observers: Observers{Unauthorized: func() {}},
	}
	c.life, c.end = context.WithCancelCause(t.Context())
	return c
}

// during is a body that calls a function during its Read, and returns text and err.
type during struct {
	f    func()
	text string
	err  error
}

func (d during) Read(p []byte) (int, error) {
	d.f()
	return copy(p, d.text), d.err
}

func (d during) Close() error { return nil }

func respond(status int, body io.ReadCloser) testutil.RoundTripperFunc {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Body: body, Header: http.Header{}}, nil
	}
}

// What arrives while the connection ends is not handed out. A body that was complete before is.
func TestBodyWhileTheConnectionEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want error
	}{
		"more to come": {nil, errGone}, "complete": {io.EOF, io.EOF}, "broken off": {io.ErrUnexpectedEOF, errGone},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := newTestConnection(t)
			body := during{f: func() { c.Close(errGone) }, text: "text", err: tc.err}
			resp, err := c.roundTripper(respond(http.StatusOK, body), false).
				RoundTrip(httptest.NewRequest(http.MethodGet, "https://server/api", nil))
			g.Expect(err).NotTo(HaveOccurred())
			defer resp.Body.Close()
			n, err := resp.Body.Read(make([]byte, 10))
			g.Expect(err).To(BeIdenticalTo(tc.want))
			if errors.Is(tc.want, errGone) && tc.err == nil {
				g.Expect(n).To(BeZero(), "what came too late is not handled")
			}
		})
	}
}

// An answer that arrives after the lease has ended is not handed out: another replica may have
// acted.
func TestAnswerAfterTheLease(t *testing.T) {
	g := NewWithT(t)
	lease, f := testutil.NewLease()
	lease.Renew(3600)
	c := newTestConnection(t)
	c.term, c.termReason = f.Term(), connstate.ReasonNotLeading
	next := testutil.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
		lease.Release()
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{}}, nil
	})
	_, err := c.roundTripper(next, false). //nolint:bodyclose // there is none
						RoundTrip(httptest.NewRequest(http.MethodPost, "https://server/api", strings.NewReader("{}")))
	g.Expect(err).To(MatchError(fence.ErrOutcomeUnknown))
	g.Expect(err).To(MatchError(connstate.ErrNotConnected))
}

// A request that is refused is not sent, also while the connection still is alive.
func TestRefusedRequestIsNotSent(t *testing.T) {
	g := NewWithT(t)
	c := newTestConnection(t)
	c.requests = &Requests{}
	c.requests.Refuse(errGone)
	next := testutil.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
		t.Error("the request was sent")
		return nil, errGone
	})
	_, err := c.roundTripper(next, false). //nolint:bodyclose // there is none
						RoundTrip(httptest.NewRequest(http.MethodGet, "https://server/api", nil))
	g.Expect(err).To(BeIdenticalTo(errGone))
}

// A connection that ends between the two RoundTrippers has no credential any more.
func TestNoCredentialAfterTheEnd(t *testing.T) {
	g := NewWithT(t)
	c := newTestConnection(t)
	c.Close(errGone)
	_, err := (&identityRoundTripper{conn: c}). //nolint:bodyclose // there is none
							RoundTrip(httptest.NewRequest(http.MethodGet, "https://server/api", nil))
	g.Expect(err).To(BeIdenticalTo(errGone))
}
