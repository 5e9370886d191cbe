package apiserver

import (
	"context"
	"net"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/latchkey-dev/latchkey/internal/strangers"
)

// strangersPerSecond is how many tokens are reviewed on average that were not accepted within an
// hour, and strangersBurst how many at once. The client has the rest of its rate for known tokens
// and for SubjectAccessReviews: invalid tokens lock out no user.
const strangersPerSecond, strangersBurst = 50, 100

// errTooManyTokens is why a token was not reviewed. The answer to its request is 401.
var errTooManyTokens = errors.New("too many requests with tokens that were not accepted before; try again")

// withTokens returns the authenticator of requests that first accepts, or that have a token which
// the API server in front accepts. It is what authenticatorfactory makes, but for the gate between
// the cache of answers and the reviews.
func withTokens(first authenticator.Request,
	client authenticationv1client.AuthenticationV1Interface) (authenticator.Request, error) {
	gated, err := gate(client)
	if err != nil {
		return nil, err
	}
	tokens := cache.New(gated, false, tokenTTL, tokenTTL)
	return group.NewAuthenticatedGroupAdder(
		union.New(first, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens))), nil
}

// gate returns the authenticator that reviews tokens.
func gate(client authenticationv1client.AuthenticationV1Interface) (authenticator.Token, error) {
	authenticatorfactory.RegisterMetrics()
	reviews, err := webhook.NewFromInterface(client, nil, *reviewBackoff(), reviewTimeout, webhook.AuthenticatorMetrics{
		RecordRequestTotal:   authenticatorfactory.RecordRequestTotal,
		RecordRequestLatency: authenticatorfactory.RecordRequestLatency,
	})
	return gatedTokens{Token: reviews, gate: strangers.New(strangersPerSecond, strangersBurst)}, err
}

// gatedTokens reviews a token unless too many strangers ask.
type gatedTokens struct {
	authenticator.Token
	gate *strangers.Gate
}

// AuthenticateToken implements authenticator.Token.
func (g gatedTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if _, ok := g.gate.Allow(token, ""); !ok {
		return nil, false, errTooManyTokens
	}
	response, accepted, err := g.Token.AuthenticateToken(ctx, token)
	switch {
	case accepted:
		g.gate.Accepted(token)
	case err == nil || isVerdict(err):
		g.gate.Refused(token)
	}
	return response, accepted, err
}

// isVerdict reports whether the error of a review is what the API server says of the token, and not
// that of a review that failed.
func isVerdict(err error) bool {
	var status apierrors.APIStatus
	var network net.Error
	return !errors.As(err, &status) && !errors.As(err, &network) && !errors.Is(err, context.Canceled)
}
