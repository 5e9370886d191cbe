package fence

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/internal/term"
)

// transport is a RoundTripper that a test decides about.
type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) { return t(req) }

// slow answers after a time, unless the request's context is done before.
func slow(after time.Duration, body io.ReadCloser) transport {
	return func(req *http.Request) (*http.Response, error) {
		select {
		case <-time.After(after):
			return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
}

// deaf answers after a time, whatever becomes of the request's context.
func deaf(after time.Duration, body io.ReadCloser) transport {
	return func(*http.Request) (*http.Response, error) {
		time.Sleep(after)
		return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
	}
}

type closable struct {
	io.Reader
	closed bool
}

func (c *closable) Close() error { c.closed = true; return nil }

func request(ctx context.Context, method string, body io.Reader) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, "https://server/api/v1/pods", body)
	if err != nil {
		panic(err)
	}
	return req
}

func TestRoundTripper(t *testing.T) {
	for name, tc := range map[string]struct {
		method  string
		next    transport
		open    time.Duration // of the fence; 0: closed
		after   time.Duration // when the result is there
		want    error
		wantNot error
	}{
		"in time": {method: http.MethodPost, next: slow(second, http.NoBody), open: 5 * second, after: second},
		"closed":  {method: http.MethodPost, want: ErrClosed, wantNot: ErrOutcomeUnknown},
		"a write that is cut": {
			method: http.MethodPost,
			next:   slow(time.Hour, http.NoBody),
			open:   5 * second,
			after:  5 * second,
			want:   ErrOutcomeUnknown,
		},
		"a write whose answer comes later": {
			method: http.MethodPatch,
			next:   deaf(6*second, http.NoBody),
			open:   5 * second,
			after:  6 * second,
			want:   ErrOutcomeUnknown,
		},
		"a write whose answer comes at once": {
			method: http.MethodDelete,
			next:   deaf(5*second, http.NoBody),
			open:   5 * second,
			after:  5 * second,
			want:   ErrOutcomeUnknown,
		},
		"a read that is cut": {
			method:  http.MethodGet,
			next:    slow(time.Hour, http.NoBody),
			open:    5 * second,
			after:   5 * second,
			want:    ErrClosed,
			wantNot: ErrOutcomeUnknown,
		},
		"an error of the server's": {
			method:  http.MethodPut,
			open:    5 * second,
			next:    func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF },
			want:    io.ErrUnexpectedEOF,
			wantNot: ErrClosed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				f := newFence()
				if tc.open > 0 {
					renew(f, time.Now(), tc.open)
				}
				body := &closable{Reader: strings.NewReader("body")}
				begun := time.Now()
				resp, err := f.RoundTripper(tc.next).RoundTrip(request(t.Context(), tc.method, body))
				g.Expect(time.Since(begun)).To(Equal(tc.after))
				if tc.want == nil {
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(resp.Body.Close()).To(Succeed())
				} else {
					g.Expect(err).To(MatchError(tc.want))
					g.Expect(resp).To(BeNil())
				}
				if tc.wantNot != nil {
					g.Expect(err).NotTo(MatchError(tc.wantNot))
				}
				if errors.Is(err, ErrOutcomeUnknown) {
					g.Expect(err).To(MatchError(ErrClosed), "with the cause")
				}
				if tc.next == nil {
					g.Expect(body.closed).To(BeTrue())
				}
				f.close("the end of the test")
			})
		})
	}
}

// A request that began before the fence closed and opened again is cut, too: another replica may
// have led meanwhile.
func TestRequestOfAnEarlierTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newFence()
		renew(f, time.Now(), 5*second)
		one := f.Term().RoundTripper(deaf(0, http.NoBody))
		go func() {
			time.Sleep(6 * second)
			renew(f, time.Now(), 5*second)
		}()
		_, err := f.RoundTripper(deaf(7*second, http.NoBody)).RoundTrip(request(t.Context(), http.MethodPost, nil))
		g.Expect(f.Open()).To(BeTrue())
		g.Expect(err).To(MatchError(ErrOutcomeUnknown))
		_, err = one.RoundTrip(request(t.Context(), http.MethodPost, nil))
		g.Expect(err).To(MatchError(ErrClosed), "the RoundTripper of a term ends with it")
		g.Expect(err).NotTo(MatchError(ErrOutcomeUnknown), "nothing was sent")
		resp, err := f.RoundTripper(deaf(0, http.NoBody)).RoundTrip(request(t.Context(), http.MethodPost, nil))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resp.Body.Close()).To(Succeed())
		f.close("the end of the test")
	})
}

// conn is a connection whose protocol was upgraded.
type conn struct {
	*io.PipeReader
	written int
}

func (c *conn) Write(p []byte) (int, error) { c.written += len(p); return len(p), nil }

// Streams end when the fence closes: watches, and connections whose protocol was upgraded.
func TestStreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newFence()
		renew(f, time.Now(), 5*second)
		reader, writer := io.Pipe()
		upgraded := &conn{PipeReader: reader}
		open := func(body io.ReadCloser) io.ReadCloser {
			resp, err := f.RoundTripper(deaf(0, body)).RoundTrip(request(t.Context(), http.MethodGet, nil))
			g.Expect(err).NotTo(HaveOccurred())
			return resp.Body
		}
		stream := open(upgraded).(io.ReadWriteCloser)
		watch := open(io.NopCloser(strings.NewReader("events")))
		n, err := stream.Write([]byte("four"))
		g.Expect(n, err).To(Equal(4))
		ended := make(chan error, 1)
		go func() {
			_, err := stream.Read(make([]byte, 1))
			ended <- err
		}()
		time.Sleep(5*second - 1)
		synctest.Wait()
		g.Expect(ended).To(BeEmpty())
		time.Sleep(time.Nanosecond)
		g.Expect(<-ended).To(MatchError(ErrClosed))
		_, err = stream.Write([]byte("late"))
		g.Expect(err).To(MatchError(ErrClosed))
		g.Expect(upgraded.written).To(Equal(4))
		n, err = watch.Read(make([]byte, 10))
		g.Expect(err).To(MatchError(ErrClosed), "what has arrived is not handled any more")
		g.Expect(n).To(BeZero())
		_, err = writer.Write([]byte("x"))
		g.Expect(err).To(MatchError(io.ErrClosedPipe), "the connection is closed")
		g.Expect(stream.Close()).To(Succeed())
		g.Expect(watch.Close()).To(Succeed())
	})
}

// A write whose answer has begun when the lease ends is of unknown outcome, too: client-go would
// ask the caller to try again.
func TestAnswerThatIsCut(t *testing.T) {
	for method, unknown := range map[string]bool{http.MethodPost: true, http.MethodGet: false} {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			f := newFence()
			renew(f, time.Now(), 5*second)
			body, writer := io.Pipe()
			resp, err := f.RoundTripper(deaf(0, body)).RoundTrip(request(t.Context(), method, nil))
			g.Expect(err).NotTo(HaveOccurred())
			go func() {
				_, _ = writer.Write([]byte("half"))
				time.Sleep(6 * second)
				_, _ = writer.Write([]byte("late"))
				_ = writer.Close()
			}()
			_, err = io.ReadFull(resp.Body, make([]byte, 4))
			g.Expect(err).NotTo(HaveOccurred())
			time.Sleep(5 * second)
			_, err = resp.Body.Read(make([]byte, 4))
			g.Expect(err).To(MatchError(ErrClosed))
			g.Expect(errors.Is(err, ErrOutcomeUnknown)).To(Equal(unknown), method)
			g.Expect(resp.Body.Close()).To(Succeed())
			f.close("the end of the test")
			time.Sleep(2 * second)
		})
	}
}

// A nil fence lets everything pass.
func TestNoFence(t *testing.T) {
	g := NewWithT(t)
	var f *Fence
	resp, err := f.RoundTripper(deaf(0, http.NoBody)).RoundTrip(request(t.Context(), http.MethodPost, nil))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resp.Body.Close()).To(Succeed())
	g.Expect(f.Remaining()).To(BeZero())
	g.Expect(f.Open()).To(BeFalse())
	term := f.Term()
	g.Expect(term.Err()).NotTo(HaveOccurred(), "a nil term lasts for ever")
	g.Expect(term.Context().Err()).NotTo(HaveOccurred())
	resp, err = term.RoundTripper(deaf(0, http.NoBody)).RoundTrip(request(t.Context(), http.MethodPost, nil))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resp.Body.Close()).To(Succeed())
}

// The context of a request says which term the request needs.
func TestTermOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newFence()
		renew(f, time.Now(), 5*second)
		var needed *Term
		_, err := f.RoundTripper(transport(func(req *http.Request) (*http.Response, error) {
			needed = term.Of(req.Context())
			return nil, io.EOF
		})).RoundTrip(request(t.Context(), http.MethodGet, nil))
		g.Expect(err).To(MatchError(io.EOF))
		g.Expect(needed).To(BeIdenticalTo(f.Term()))
		g.Expect(term.Of(t.Context())).To(BeNil())
		g.Expect((*Term)(nil).Err()).NotTo(HaveOccurred(), "no term is needed")
		f.close("the end of the test")
	})
}

// BenchmarkFence is what the fence adds to a request, without a transport.
func BenchmarkFence(b *testing.B) {
	f := newFence()
	renew(f, time.Now(), time.Hour)
	defer f.close("the end")
	term := f.Term()
	b.Run("check", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if term.Err() != nil {
				b.Fatal("closed")
			}
		}
	})
	answer := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}
	next := transport(func(*http.Request) (*http.Response, error) {
		answer.Body = http.NoBody
		return answer, nil
	})
	for name, roundTripper := range map[string]http.RoundTripper{"request": f.RoundTripper(next),
		"request without": next} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			req := request(b.Context(), http.MethodGet, nil)
			for b.Loop() {
				resp, err := roundTripper.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				_ = resp.Body.Close()
			}
		})
	}
}
