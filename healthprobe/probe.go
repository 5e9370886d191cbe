package healthprobe

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/pkg/errors"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
// authenticates the request; config holds no credential. Ask returns within timeout.
func Ask(ctx context.Context, config *rest.Config, httpClient *http.Client, timeout time.Duration) Answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	reviews, err := authenticationv1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return Answer{Verdict: Failing, Err: errors.Wrap(err, "preparing a SelfSubjectReview")}
	}
	review, err := reviews.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return Answer{Verdict: Classify(err), Err: errors.WithMessage(err, "asking the API server who we are")}
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
