package accessor

import (
	"io"
	"net/http"
	"strings"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// maxAnswer is how much of the answer to a probe is read: an API server's is a few KiB.
	maxAnswer = 64 << 10
	// maxMessage is how long the Message of a state is.
	maxMessage = 1024
)

// shortAnswers is a RoundTripper that reads no more than maxAnswer of what a server sends.
type shortAnswers struct{ next http.RoundTripper }

func (s shortAnswers) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(req)
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
func (s shortAnswers) WrappedRoundTripper() http.RoundTripper { return s.next }

// discreetError is the error of a request whose answer is not to be shown: whoever chose the server may be after what others
// may not read there.
type discreetError struct {
	shown string
	cause error
}

func (e *discreetError) Error() string { return e.shown }
func (e *discreetError) Unwrap() error { return e.cause }

// discreet shows no more than the status of an answer. What failed without one is shown as it is.
func discreet(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	code := int(status.Status().Code)
	return &discreetError{shown: strings.TrimSpace("asking the API server who we are: it answered " + http.StatusText(code)), cause: err}
}

// shorten cuts a text that nobody would read.
func shorten(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + "…"
}
