package credential

import (
	"context"
	"net/http"
	"strings"

	"github.com/pkg/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/transport"

	"github.com/latchkey-dev/latchkey/internal/identity"
)

// remoteImpersonation is the credential of a kubeconfig, with a header that selects a
// ServiceAccount of the kubeconfig's cluster.
type remoteImpersonation struct {
	*staticCredential
	username string
}

var _ identity.Impersonator = (*remoteImpersonation)(nil)

// Prepare implements Credential. Without a username the API server would serve requests as the
// kubeconfig's own user.
func (i *remoteImpersonation) Prepare(ctx context.Context) error {
	if i.username == "" {
		return invalid(nil, "no user to impersonate")
	}
	return i.staticCredential.Prepare(ctx)
}

// OwnRoundTripper implements Impersonator.
func (i *remoteImpersonation) OwnRoundTripper(next http.RoundTripper) http.RoundTripper {
	return i.staticCredential.RoundTripper(next)
}

// RoundTripper implements Credential. The kubeconfig's credential removes every header that names a
// user, so the user to impersonate is named after that.
func (i *remoteImpersonation) RoundTripper(next http.RoundTripper) http.RoundTripper {
	return &withoutHopByHop{
		credential: i,
		next:       i.staticCredential.RoundTripper(&namesUser{username: i.username, next: next}),
	}
}

// withoutHopByHop is a RoundTripper that refuses requests with hop-by-hop headers: if a proxy
// removed the name of the impersonated user, the API server would serve the request as the
// kubeconfig's own user.
type withoutHopByHop struct {
	credential *remoteImpersonation
	next       http.RoundTripper
}

func (w *withoutHopByHop) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := w.credential.Prepare(req.Context()); err != nil {
		closeBody(req)
		return nil, err
	}
	if err := refuseHopByHop(req); err != nil {
		closeBody(req)
		return nil, err
	}
	return w.next.RoundTrip(req)
}

// WrappedRoundTripper lets client-go find the TLS settings of the wrapped transport.
func (w *withoutHopByHop) WrappedRoundTripper() http.RoundTripper { return w.next }

// refuseHopByHop returns an error for a request that a proxy might strip of its impersonation.
func refuseHopByHop(req *http.Request) error {
	if found := hopByHop(req); len(found) > 0 {
		return errors.Errorf("a request with %s is not sent under impersonation: with hop-by-hop headers "+
			"a proxy could remove the impersonation headers; remove them from the request", strings.Join(found, ", "))
	}
	return nil
}

// namesUser is a RoundTripper that adds the user to impersonate.
type namesUser struct {
	username string
	next     http.RoundTripper
}

func (n *namesUser) RoundTrip(req *http.Request) (*http.Response, error) {
	clone := utilnet.CloneRequest(req)
	clone.Header.Set(transport.ImpersonateUserHeader, n.username)
	return n.next.RoundTrip(clone)
}

// WrappedRoundTripper lets client-go find the TLS settings of the wrapped transport.
func (n *namesUser) WrappedRoundTripper() http.RoundTripper { return n.next }
