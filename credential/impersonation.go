package credential

import (
	"context"
	"net/http"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/tracing"
)

// ImpersonationOptions configure Impersonation. The zero value is for ClusterExtensions.
type ImpersonationOptions struct {
	// NamespacePath and NamePath have the same meaning as in ServiceAccountOptions.
	NamespacePath, NamePath string
	// Reference has the same meaning as in ServiceAccountOptions.
	Reference func(client.Object) (types.NamespacedName, error)
	// UID adds the ServiceAccount's UID to requests (Impersonate-Uid), so that the audit log has
	// it. The host operator then needs "impersonate" on uids in authentication.k8s.io, and
	// constrained impersonation does not work.
	UID bool
	// Groups adds the groups of a ServiceAccount to requests (Impersonate-Group). Without Groups,
	// an API server adds these groups by itself. The host operator then needs "impersonate" on
	// groups, and constrained impersonation does not work.
	Groups bool
}

// Impersonation is the provider for host operators that may impersonate. Every extension names a
// ServiceAccount of the cluster that contains the extension. Its requests carry the host operator's
// own credential and Impersonate-User. There is no token that could be stolen or expire. The audit
// log names the host operator as user and the ServiceAccount as impersonatedUser.
//
// An API server accepts any name and UID in an impersonation header. Therefore the watch of
// ServiceAccounts determines whether the ServiceAccount exists and which UID it has. When the
// ServiceAccount is deleted, the connection ends. Requests go through the HTTP client of the
// cluster of the extensions, and share its TCP connections. A client that opens its own
// connections, as client-go's exec and port-forward do, would need the host operator's credential,
// so it is refused.
//
// The host operator needs "impersonate" on serviceaccounts, preferably limited by resourceNames, or
// the permissions for constrained impersonation (config/rbac-examples). The host operator also
// needs list and watch on serviceaccounts. While the API server denies the impersonation, the
// reason is Unauthorized. The host operator's config must not impersonate another user already.
func Impersonation(options ImpersonationOptions) Provider {
	return impersonation(options)
}

type impersonation ImpersonationOptions

func (impersonation) sealed() {}

func (o impersonation) Bind(host cluster.Cluster, kind identity.Kind,
	_ *metrics.Cache, _ *tracing.Tracer) (identity.Resolver, error) {
	if configured := host.GetConfig().Impersonate; configured.UserName != "" || configured.UID != "" ||
		len(configured.Groups)+len(configured.Extra) > 0 {
		return nil,
			errors.New("the host operator's own config impersonates a user, and an API server accepts only one impersonation")
	}
	carrier := host.GetHTTPClient().Transport
	if carrier == nil {
		return nil, errors.New("the host operator's HTTP client has no transport, and so no credential")
	}
	resolver, err := newServiceAccountResolver(host, kind,
		serviceAccountReference{o.NamespacePath, o.NamePath, o.Reference})
	if err != nil {
		return nil, err
	}
	resolver.credential = func(id tokenID, resolved *identity.Resolution) {
		resolved.Key = "impersonated\x00" + resolved.Key
		resolved.Impersonated = true
		headers := http.Header{transport.ImpersonateUserHeader: {resolved.Expected.Username}}
		if o.UID {
			headers.Set(transport.ImpersonateUIDHeader, string(id.uid))
		}
		if o.Groups {
			headers[transport.ImpersonateGroupHeader] = []string{
				"system:serviceaccounts", "system:serviceaccounts:" + id.serviceAccount.Namespace, "system:authenticated",
			}
		}
		resolved.OpenFunc = func() identity.Credential {
			return &impersonationCredential{headers: headers, carrier: carrier}
		}
	}
	return resolver, nil
}

// impersonationCredential is the host operator's credential, with headers that select another
// identity.
type impersonationCredential struct {
	headers http.Header
	carrier http.RoundTripper
	closed  atomic.Bool
}

func (*impersonationCredential) Expires() time.Time { return time.Time{} }
func (*impersonationCredential) Discard(time.Time)  {}
func (i *impersonationCredential) Close()           { i.closed.Store(true) }
func (i *impersonationCredential) TransportRequirement() identity.TransportRequirement {
	return identity.TransportRequirement{Transport: i.carrier}
}
func (i *impersonationCredential) Prepare(context.Context) error {
	switch {
	case i.closed.Load():
		return errClosed
	case i.headers.Get(transport.ImpersonateUserHeader) == "":
		// Without a user the API server would serve the request as the host operator.
		return invalid(nil, "no user to impersonate")
	}
	return nil
}

func (i *impersonationCredential) RoundTripper(next http.RoundTripper) http.RoundTripper {
	return &impersonationTransport{credential: i, next: next}
}

// impersonationTransport is a RoundTripper that adds the impersonation headers to every request,
// and removes every other header that names a user.
type impersonationTransport struct {
	credential *impersonationCredential
	next       http.RoundTripper
}

func (i *impersonationTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := i.credential.Prepare(req.Context()); err != nil {
		closeBody(req)
		return nil, err
	}
	// If a proxy removed the impersonation headers, the API server would serve the request as the
	// host operator.
	if err := refuseHopByHop(req); err != nil {
		closeBody(req)
		return nil, err
	}
	clone := cloneForIdentity(req)
	for name, values := range i.credential.headers {
		clone.Header[name] = append([]string(nil), values...)
	}
	resp, err := i.next.RoundTrip(clone)
	if err != nil {
		if text := err.Error(); redactAuthorization(text) != text {
			err = errors.New(redactAuthorization(text))
		}
		return nil, err
	}
	return redacted(resp, req, redactAuthorization), nil
}

var authorizationValue = regexp.MustCompile(`(?i)((?:bearer|basic)\s+)[a-z0-9._~+/=-]+`)

// redactAuthorization removes the word after "Bearer" or "Basic". The host operator's token may
// come from a file or a program, so this package does not know the token itself.
func redactAuthorization(text string) string {
	return authorizationValue.ReplaceAllString(text, "${1}[redacted]")
}

// WrappedRoundTripper lets client-go find the TLS settings of the wrapped transport.
func (i *impersonationTransport) WrappedRoundTripper() http.RoundTripper { return i.next }
