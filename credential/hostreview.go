package credential

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/pkg/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/identity"
)

// hostReview checks tokens for remote API servers before they are sent anywhere: that they have
// exactly the audience that was asked for, and that the API server that issued them does not accept
// them. So a remote API server can do nothing with a token that it gets.
type hostReview struct {
	url    string
	client *http.Client
}

// reviewPath is where an API server says who asks.
const reviewPath = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

// newHostReview returns the check by the API server of a config, without its credential.
func newHostReview(host *rest.Config) (*hostReview, error) {
	// An API server ends an HTTP/2 connection with each 401, and with it the other requests there.
	config := rest.AnonymousClientConfig(host) // with the CAFile, which may be rotated
	config.NextProtos = []string{"http/1.1"}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, errors.Wrap(err, "preparing to check tokens for remote API servers")
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, errors.New("the API server's address cannot be parsed") // the cause quotes it
	}
	return &hostReview{
		url: strings.TrimRight(server.String(), "/") + reviewPath,
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// check returns when the token expires by what it says. An error means that the token must not be
// used; it contains nothing of the token.
func (h *hostReview) check(ctx context.Context, token string, id tokenID) (expires time.Time, err error) {
	unusable := func(format string, args ...any) error {
		return errors.Wrapf(identity.ErrTokenRequestFailed, "the token of serviceaccount %s is not used: %s",
			id.serviceAccount, errors.Errorf(format, args...))
	}
	claims, err := claimsOf(token)
	if err != nil {
		return expires, unusable("it %v", err)
	}
	if claims.audience != id.audience {
		return expires, unusable("it is for another audience than was asked for")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url,
		strings.NewReader(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`))
	if err != nil {
		return expires, errors.Wrap(err, "asking the host operator's API server about a token")
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := h.client.Do(req)
	if err != nil {
		if text := newSecret(token).redact(err.Error()); text != err.Error() {
			err = errors.New(text) // net/http quotes a response that is not HTTP
		}
		return expires, errors.Wrapf(err, "asking the host operator's API server whether it refuses the token of "+
			"serviceaccount %s for another server", id.serviceAccount)
	}
	drain(resp)
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
	case resp.StatusCode >= http.StatusInternalServerError, resp.StatusCode == http.StatusTooManyRequests:
		return expires, unusable("whether the host operator's API server refuses it is unknown (HTTP status %d)",
			resp.StatusCode)
	default:
		return expires, unusable("the host operator's API server does not refuse it (HTTP status %d), so a server that gets "+
			"it could act here; choose an audience that is not in --api-audiences of the API server", resp.StatusCode)
	}
	// A token that is not valid yet is refused for that reason, and could be accepted later.
	now := time.Now()
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		now = date
	}
	if !now.Before(claims.expires) {
		return expires, unusable("it has expired by the clock of the host operator's API server, whose refusal thus says " +
			"nothing about its audience; check the clocks of the API servers there")
	}
	if early := claims.usable.Sub(now); early > leeway {
		return expires, unusable("it is valid only in %s by the clock of the host operator's API server, whose refusal thus "+
			"says nothing about its audience; check the clocks of the API servers there", early.Round(time.Second))
	}
	return claims.expires, nil
}

func (h *hostReview) close() { utilnet.CloseIdleConnectionsFor(h.client.Transport) }
