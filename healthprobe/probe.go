package healthprobe

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// Answer is the outcome of one probe.
type Answer struct {
	Verdict  Verdict  // what the answer means
	Identity Identity // set exactly when Valid
	Err      error    // nil exactly when Valid
	// RetryAfter is how long the server asks to wait. It is set only if Throttled, and 0 if the server
	// did not say. It is not bounded.
	RetryAfter time.Duration
}

// Ask sends one SelfSubjectReview to the server of config and returns the answer. httpClient
// authenticates the request; config holds no credential. Ask returns within timeout. Ask sends one
// request only: the answer is the server's first, also if the server asks to be tried again later.
func Ask(ctx context.Context, config *rest.Config, httpClient *http.Client, timeout time.Duration) Answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	noted := notingRoundTripper{next: httpClient.Transport}
	if noted.next == nil {
		noted.next = http.DefaultTransport
	}
	noting := *httpClient
	noting.Transport = &noted
	reviews, err := authenticationv1client.NewForConfigAndClient(config, &noting)
	if err != nil {
		return Answer{Verdict: Failing, Err: errors.Wrap(err, "preparing a SelfSubjectReview")}
	}
	review := &authenticationv1.SelfSubjectReview{}
	err = reviews.RESTClient().Post().Resource("selfsubjectreviews").Body(&authenticationv1.SelfSubjectReview{}).
		MaxRetries(0).Do(ctx).Into(review)
	if err != nil {
		return noted.judge(ctx, err)
	}
	user := review.Status.UserInfo
	switch {
	case user.Username == "":
		return Answer{
			Verdict: Failing,
			Err:     errors.New("asking the API server who we are: the API server stated no user name"),
		}
	case user.Username == "system:anonymous" || slices.Contains(user.Groups, "system:unauthenticated"):
		return Answer{
			Verdict: Unauthorized,
			Err: errors.New("asking the API server who we are: the API server treats the " +
				"credential as anonymous"),
		}
	case !untrusted.IsPresentable(user.Username) || !untrusted.IsPresentable(user.UID) ||
		slices.ContainsFunc(user.Groups, func(group string) bool { return !untrusted.IsPresentable(group) }):
		return Answer{
			Verdict: Failing,
			Err: errors.New(
				"asking the API server who we are: the API server stated an identity whose name, UID " +
					"or groups are not printable or too long"),
		}
	}
	return Answer{
		Verdict:  Valid,
		Identity: Identity{Username: user.Username, UID: types.UID(user.UID), Groups: user.Groups},
	}
}

// notingRoundTripper notes that an answer has begun, and its Retry-After.
type notingRoundTripper struct {
	next       http.RoundTripper
	answered   atomic.Bool
	retryAfter atomic.Int64 // seconds
}

// judge returns the answer for the error of the request.
func (n *notingRoundTripper) judge(ctx context.Context, err error) Answer {
	const asking = "asking the API server who we are"
	answer := Answer{Verdict: Classify(err), Err: errors.WithMessage(err, asking)}
	var status *apierrors.StatusError
	switch isStatus := errors.As(err, &status); {
	case answer.Verdict == Silent && n.answered.Load() && ctx.Err() == nil:
		answer.Verdict = Failing // the server has answered, but with nothing that a client understands
	case isStatus && status.ErrStatus.Code == http.StatusServiceUnavailable && n.retryAfter.Load() > 0:
		answer.Verdict = Throttled // a Status in the body hides the header from client-go
	}
	if answer.Verdict != Throttled {
		return answer
	}
	answer.RetryAfter, _ = connstate.ThrottledFor(err)
	answer.RetryAfter = max(answer.RetryAfter, time.Duration(n.retryAfter.Load())*time.Second)
	if !n.answered.Load() { // the API server that issues tokens refused, and no review was sent
		return answer
	}
	words := err.Error()
	if cause, ok := apierrors.StatusCause(err, metav1.CauseTypeUnexpectedServerResponse); ok && cause.Message != "" {
		words = cause.Message
	}
	text := asking + ": the API server refuses requests for now (" + http.StatusText(int(status.ErrStatus.Code))
	if answer.RetryAfter > 0 {
		text += ", and asks to try again after " + answer.RetryAfter.String()
	}
	answer.Err = untrusted.Show(text+"): "+words, err)
	return answer
}

func (n *notingRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := n.next.RoundTrip(req)
	if err == nil {
		n.answered.Store(true)
		if seconds, err := strconv.ParseInt(resp.Header.Get("Retry-After"), 10, 32); err == nil {
			n.retryAfter.Store(seconds)
		}
	}
	return resp, err
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (n *notingRoundTripper) WrappedRoundTripper() http.RoundTripper { return n.next }

// Classify returns the Verdict that the error of a request to an API server stands for. A nil error
// is Valid. An error without a status of the API server is Silent.
func Classify(err error) Verdict {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return Valid
	case !errors.As(err, &status):
		return Silent
	case apierrors.IsUnauthorized(err):
		return Unauthorized
	case apierrors.IsForbidden(err):
		return Denied
	case isThrottled(err):
		return Throttled
	default:
		return Failing
	}
}

func isThrottled(err error) bool {
	_, throttled := connstate.ThrottledFor(err)
	return throttled
}
