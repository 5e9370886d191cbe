package healthprobe

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// Answer is the outcome of one probe.
type Answer struct {
	Verdict  Verdict  // what the answer means
	Identity Identity // set exactly when Valid
	Err      error    // nil exactly when Valid
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
		verdict := Classify(err)
		if verdict == Silent && noted.answered.Load() && ctx.Err() == nil {
			verdict = Failing // the server has answered, but with nothing that a client understands
		}
		return Answer{Verdict: verdict, Err: errors.WithMessage(err, "asking the API server who we are")}
	}
	user := review.Status.UserInfo
	switch {
	case user.Username == "":
		return Answer{
			Verdict: Failing, Err: errors.New("asking the API server who we are: the API server stated no user name"),
		}
	case user.Username == "system:anonymous" || slices.Contains(user.Groups, "system:unauthenticated"):
		return Answer{
			Verdict: Unauthorized, Err: errors.New("asking the API server who we are: the API server treats the " +
				"credential as anonymous"),
		}
	case !untrusted.IsPresentable(user.Username) || !untrusted.IsPresentable(user.UID) ||
		slices.ContainsFunc(user.Groups, func(group string) bool { return !untrusted.IsPresentable(group) }):
		return Answer{
			Verdict: Failing, Err: errors.New(
				"asking the API server who we are: the API server stated an identity whose name, UID " +
					"or groups are not printable or too long"),
		}
	}
	return Answer{
		Verdict: Valid, Identity: Identity{Username: user.Username, UID: types.UID(user.UID), Groups: user.Groups},
	}
}

// notingRoundTripper notes that an answer has begun.
type notingRoundTripper struct {
	next     http.RoundTripper
	answered atomic.Bool
}

func (n *notingRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := n.next.RoundTrip(req)
	if err == nil {
		n.answered.Store(true)
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
	default:
		return Failing
	}
}
