package credential

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/pkg/errors"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/internal/identity"
)

// tokenIssuer requests tokens from the API server of the extensions, with the host operator's
// credential.
type tokenIssuer struct {
	client    rest.Interface
	audiences []string
	lifetime  time.Duration
	host      *hostReview // nil if all tokens are for the API server of the extensions
}

func newTokenIssuer(host cluster.Cluster, audiences []string, lifetime time.Duration) (*tokenIssuer, error) {
	return newTokenIssuerAt(host.GetConfig(), host.GetHTTPClient(), audiences, lifetime)
}

// newTokenIssuerAt is newTokenIssuer for the API server of a config, with a client that has its
// credential.
func newTokenIssuerAt(host *rest.Config, client *http.Client, audiences []string, lifetime time.Duration) (*tokenIssuer,
	error) {
	config := rest.CopyConfig(host)
	// The semaphore tokens.turns limits TokenRequests. The host operator's own rate limit must not
	// make tenants wait for each other.
	config.RateLimiter, config.QPS = nil, -1
	core, err := corev1client.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, errors.Wrap(err, "preparing TokenRequests")
	}
	return &tokenIssuer{client: core.RESTClient(), audiences: audiences, lifetime: lifetime}, nil
}

// issue requests one token. The response is read as a stream, because client-go logs the bodies of
// all other responses.
func (i *tokenIssuer) issue(ctx context.Context, id tokenID) (issuedToken, error) {
	seconds, audiences := int64(i.lifetime/time.Second), i.audiences
	if id.target != "" {
		audiences = []string{id.audience}
	}
	requestedAt := time.Now()
	body, err := i.client.Post().
		Namespace(id.serviceAccount.Namespace).
		Resource("serviceaccounts").
		Name(id.serviceAccount.Name).
		SubResource("token").
		SetHeader("Accept", "application/json").
		MaxRetries(0). // the caller decides when to ask again, and says why there is no token meanwhile
		Body(&authenticationv1.TokenRequest{
			// The API server returns a 409 if the ServiceAccount has another UID now.
			ObjectMeta: metav1.ObjectMeta{UID: id.uid},
			Spec:       authenticationv1.TokenRequestSpec{Audiences: audiences, ExpirationSeconds: &seconds},
		}).
		Stream(ctx)
	if err != nil {
		what := "requesting a token"
		if apierrors.IsForbidden(err) {
			what = "the host operator needs create on serviceaccounts/token (tenants of the chart, or a rule " +
				identity.Rule(schema.GroupResource{Resource: "serviceaccounts/token"}, []string{id.serviceAccount.Name}, "create") +
				" in namespace " + id.serviceAccount.Namespace + "): " + what
		}
		return issuedToken{}, errors.Wrapf(classify(err), "%s of serviceaccount %s", what, id.serviceAccount)
	}
	defer body.Close()
	var answer authenticationv1.TokenRequest
	if err := json.NewDecoder(body).Decode(&answer); err != nil || answer.Status.Token == "" {
		// The error contains nothing of the response, because the response may contain a token.
		return issuedToken{},
			errors.Wrapf(identity.ErrTokenRequestFailed, "the API server's response for serviceaccount %s has no token",
				id.serviceAccount)
	}
	life := lifeOf(&answer, requestedAt)
	if id.target != "" {
		expires, err := i.host.check(ctx, answer.Status.Token, id)
		if err != nil {
			return issuedToken{}, err
		}
		life = min(life, expires.Sub(requestedAt))
	}
	if life <= expiryMargin {
		return issuedToken{},
			errors.Wrapf(identity.ErrTokenRequestFailed,
				"the token of serviceaccount %s expires at %s, which has passed by the local clock; check both clocks",
				id.serviceAccount, requestedAt.Add(life).UTC().Format(time.RFC3339))
	}
	return issuedToken{
		value:       newSecret(answer.Status.Token),
		requestedAt: requestedAt,
		life:        life,
		renew:       renewAfter(life, rand.Float64()),
	}, nil
}

// lifeOf returns the lifetime of a token, counted from its request. The lifetime ends at the
// response's expiration timestamp, or after the response's duration, whichever is earlier. The
// result is also correct if the local clock is behind the server's clock.
func lifeOf(answer *authenticationv1.TokenRequest, requestedAt time.Time) time.Duration {
	life := answer.Status.ExpirationTimestamp.Sub(requestedAt)
	if granted := answer.Spec.ExpirationSeconds; granted != nil && *granted > 0 {
		life = min(life, time.Duration(*granted)*time.Second)
	}
	return life
}

// renewAfter returns the age at which to renew a token: 60 to 80 % of the time for which it may be
// sent, so that it is still valid then, however short its lifetime is. jitter in [0,1) spreads the
// renewals of tokens that were issued at the same time.
func renewAfter(life time.Duration, jitter float64) time.Duration {
	return time.Duration(float64(life-expiryMargin) * (0.8 - jitter/5))
}

// classify adds the reason why a TokenRequest failed. An error without a status is returned
// unchanged, because the API server did not respond.
func classify(err error) error {
	var status apierrors.APIStatus
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return &classifiedError{kind: identity.ErrServiceAccountNotFound, cause: err}
	case errors.As(err, &status):
		return &classifiedError{kind: identity.ErrTokenRequestFailed, cause: err}
	default:
		return err
	}
}
