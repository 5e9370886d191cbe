package credential

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
)

// ImpersonationOptions configure Impersonation. The zero value is for ClusterExtensions.
type ImpersonationOptions struct {
	// NamespacePath and NamePath are as in ServiceAccountOptions.
	NamespacePath, NamePath string
	// UID sends the ServiceAccount's UID along (Impersonate-Uid), so that it is in the audit log.
	// The host operator then needs "impersonate" on uids in authentication.k8s.io, and constrained
	// impersonation does not work.
	UID bool
	// Groups sends the groups of a ServiceAccount along (Impersonate-Group). An API server adds
	// them by itself. The host operator then needs "impersonate" on groups, and constrained
	// impersonation does not work.
	Groups bool
}

// Impersonation is the provider for host operators that may impersonate: every extension names a
// ServiceAccount of the cluster it lives in, and its requests go with the host operator's own
// credential and Impersonate-User. There is no token that could be stolen or expire; the audit log
// names the host operator as user and the ServiceAccount as impersonatedUser.
//
// An API server believes any name and UID that it is told, so that the ServiceAccount exists, and
// which UID it has, comes from the watch of ServiceAccounts: when the ServiceAccount is deleted,
// the connection ends. Requests go through the HTTP client of the cluster of the extensions, and
// share its TCP connections. A client that dials by itself, as client-go's exec and port-forward
// do, would need the host operator's credential, and is refused.
//
// The host operator needs "impersonate" on serviceaccounts, best by resourceNames, or what
// constrained impersonation has in its place (config/rbac-examples), and list and watch on
// serviceaccounts. While the API server denies the impersonation the reason is Unauthorized. Its
// config must not impersonate anybody already.
func Impersonation(options ImpersonationOptions) Provider {
	return impersonation(options)
}

type impersonation ImpersonationOptions

func (impersonation) sealed() {}

func (o impersonation) Bind(host cluster.Cluster, kind Kind) (Resolver, error) {
	if own := host.GetConfig().Impersonate; own.UserName != "" || own.UID != "" || len(own.Groups)+len(own.Extra) > 0 {
		return nil,
			errors.New("the host operator's own config impersonates somebody, and an API server does not impersonate twice")
	}
	carrier := host.GetHTTPClient().Transport
	if carrier == nil {
		return nil, errors.New("the host operator's HTTP client has no transport, and so no credential")
	}
	resolver, err := newServiceAccountResolver(host, kind, o.NamespacePath, o.NamePath)
	if err != nil {
		return nil, err
	}
	resolver.credential = func(id tokenID, resolved *Resolution) {
		resolved.Key = "impersonated\x00" + resolved.Key
		resolved.Impersonated = true
		as := http.Header{transport.ImpersonateUserHeader: {resolved.Expected.Username}}
		if o.UID {
			as.Set(transport.ImpersonateUIDHeader, string(id.uid))
		}
		if o.Groups {
			as[transport.ImpersonateGroupHeader] = []string{
				"system:serviceaccounts", "system:serviceaccounts:" + id.serviceAccount.Namespace, "system:authenticated",
			}
		}
		resolved.open = func() Credential { return &impersonated{as: as, carrier: carrier} }
	}
	return resolver, nil
}

// impersonated is the host operator's credential, with the headers that make it somebody else's.
type impersonated struct {
	as      http.Header
	carrier http.RoundTripper
	closed  atomic.Bool
}

var _ Credential = (*impersonated)(nil)

func (*impersonated) sealed()            {}
func (*impersonated) Expires() time.Time { return time.Time{} }
func (*impersonated) Discard(time.Time)  {}
func (i *impersonated) Close()           { i.closed.Store(true) }
func (i *impersonated) TransportRequirement() TransportRequirement {
	return TransportRequirement{Transport: i.carrier}
}
func (i *impersonated) Prepare(context.Context) error {
	switch {
	case i.closed.Load():
		return errClosed
	case i.as.Get(transport.ImpersonateUserHeader) == "":
		// The API server would serve the host operator.
		return invalid(nil, "nobody to impersonate")
	}
	return nil
}

func (i *impersonated) RoundTripper(next http.RoundTripper) http.RoundTripper {
	return &impersonating{credential: i, next: next}
}

// impersonating is a RoundTripper that adds to every request whom it is for, and removes whom else
// it names.
type impersonating struct {
	credential *impersonated
	next       http.RoundTripper
}

func (i *impersonating) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := i.credential.Prepare(req.Context()); err != nil {
		closeBody(req)
		return nil, err
	}
	if found := hopByHop(req); len(found) > 0 {
		// A proxy that removed the headers of the impersonation would leave a request of the host
		// operator.
		closeBody(req)
		return nil,
			errors.Errorf("a request with %s is not sent under impersonation: such headers are for the next proxy only, "+
				"and could have it remove others; leave them out", strings.Join(found, ", "))
	}
	as := cloneForIdentity(req)
	for name, values := range i.credential.as {
		as.Header[name] = append([]string(nil), values...)
	}
	resp, err := i.next.RoundTrip(as)
	if err != nil {
		if text := err.Error(); redactBearer(text) != text {
			err = errors.New(redactBearer(text))
		}
		return nil, err
	}
	resp.Request = req // and not one that carries the host operator's credential
	redactResponse(resp, redactBearer)
	return resp, nil
}

var bearerToken = regexp.MustCompile(`(?i)(bearer\s+)[a-z0-9._~+/=-]+`)

// redactBearer removes whatever follows "Bearer": the host operator's token may come from a file or
// a program, so it is not known here.
func redactBearer(text string) string { return bearerToken.ReplaceAllString(text, "${1}[redacted]") }

// WrappedRoundTripper lets client-go find the TLS settings below.
func (i *impersonating) WrappedRoundTripper() http.RoundTripper { return i.next }
