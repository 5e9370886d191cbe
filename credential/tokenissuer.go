package credential

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"time"

	"github.com/pkg/errors"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
)

// tokenIssuer asks the API server of the extensions for tokens, as the host operator.
type tokenIssuer struct {
	client    rest.Interface
	audiences []string
	lifetime  time.Duration
}

func newTokenIssuer(host cluster.Cluster, audiences []string, lifetime time.Duration) (*tokenIssuer, error) {
	config := rest.CopyConfig(host.GetConfig())
	// We bound ourselves; the host operator's own limit must not queue tenants behind each other.
	config.RateLimiter, config.QPS = nil, -1
	core, err := corev1client.NewForConfigAndClient(config, host.GetHTTPClient())
	if err != nil {
		return nil, errors.Wrap(err, "preparing TokenRequests")
	}
	return &tokenIssuer{client: core.RESTClient(), audiences: audiences, lifetime: lifetime}, nil
}

// issue asks for one token. It reads the answer as a stream because client-go logs the bodies of
// all others.
func (i *tokenIssuer) issue(ctx context.Context, id tokenID) (issued, error) {
	seconds := int64(i.lifetime / time.Second)
	asked := time.Now()
	body, err := i.client.Post().
		Namespace(id.serviceAccount.Namespace).
		Resource("serviceaccounts").
		Name(id.serviceAccount.Name).
		SubResource("token").
		SetHeader("Accept", "application/json").
		Body(&authenticationv1.TokenRequest{
			// The API server refuses with 409 when the ServiceAccount has another UID by now.
			ObjectMeta: metav1.ObjectMeta{UID: id.uid},
			Spec:       authenticationv1.TokenRequestSpec{Audiences: i.audiences, ExpirationSeconds: &seconds},
		}).
		Stream(ctx)
	if err != nil {
		what := "requesting a token"
		if apierrors.IsForbidden(err) {
			what = "the host operator needs create on serviceaccounts/token (ClusterRole latchkey-operator in " +
				"config/rbac, or config/rbac-examples/tokens-by-name.yaml): " + what
		}
		return issued{}, errors.Wrapf(classify(err), "%s of serviceaccount %s", what, id.serviceAccount)
	}
	defer body.Close()
	var answer authenticationv1.TokenRequest
	if err := json.NewDecoder(body).Decode(&answer); err != nil || answer.Status.Token == "" {
		// Nothing of the answer goes into the error: it may hold a token.
		return issued{},
			errors.Wrapf(ErrTokenRequestFailed, "the answer for serviceaccount %s holds no token", id.serviceAccount)
	}
	life := lifeOf(&answer, asked)
	if life <= expiryMargin {
		return issued{},
			errors.Wrapf(ErrTokenRequestFailed,
				"the token of serviceaccount %s expires at %s, which is over by our clock: do the clocks agree?",
				id.serviceAccount, answer.Status.ExpirationTimestamp.UTC().Format(time.RFC3339))
	}
	return issued{value: newSecret(answer.Status.Token), at: asked, life: life,
		renew: renewAfter(life, rand.Float64())}, nil
}

// lifeOf is how long a token lives from when it was asked for: as the server's answer says, by the
// earlier of the end it names and the time it grants, which is right also where our clock is behind
// the server's.
func lifeOf(answer *authenticationv1.TokenRequest, asked time.Time) time.Duration {
	life := answer.Status.ExpirationTimestamp.Sub(asked)
	if granted := answer.Spec.ExpirationSeconds; granted != nil && *granted > 0 {
		life = min(life, time.Duration(*granted)*time.Second)
	}
	return life
}

// renewAfter is when to renew a token that lives so long: at 60 to 80 % of its life, so that tokens
// that were issued together are not renewed together.
func renewAfter(life time.Duration, jitter float64) time.Duration {
	return time.Duration(float64(life) * (0.8 - jitter/5))
}

// classify marks why a TokenRequest failed. An error without a status, that is, without an answer,
// stays as it is.
func classify(err error) error {
	var status apierrors.APIStatus
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return &joined{kind: ErrServiceAccountNotFound, cause: err}
	case errors.As(err, &status):
		return &joined{kind: ErrTokenRequestFailed, cause: err}
	default:
		return err
	}
}
