package credential

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
)

// FromRESTConfigMapper is the provider for everything that the others do not cover: mapper sets a credential on
// the config that it is given, which reaches the API server of the extensions, holds no credential, and is a copy.
// It may be called from any goroutine and must only read caches.
//
// Accepted are Host, APIPath, TLSClientConfig.CAData, TLSClientConfig.ServerName and BearerToken, which must be
// set and must not be the host operator's own. Timeout, QPS, Burst, UserAgent, ContentConfig, DisableCompression and
// warning handlers are ignored: connections have their own. Everything else is an error that names the field: it could
// run programs, open files, switch verification off, or smuggle in another identity.
//
// Another token is another connection, with a cache of its own. The identity is learned from the first probe
// and pinned for the connection's life. mapper is called whenever the extension changes and before each probe and
// connect, so a token that changed elsewhere is noticed within IdentityInterval. The text of its errors is shown to
// people: keep secrets out of it.
func FromRESTConfigMapper(mapper func(context.Context, client.Object, *rest.Config) (*rest.Config, error)) Provider {
	return restConfigMapper(mapper)
}

type restConfigMapper func(context.Context, client.Object, *rest.Config) (*rest.Config, error)

func (restConfigMapper) sealed() {}

func (m restConfigMapper) Bind(host cluster.Cluster) (Resolver, error) {
	if m == nil {
		return nil, errors.New("FromRESTConfigMapper needs a function")
	}
	base, err := Anonymous(host.GetConfig())
	if err != nil {
		return nil, err
	}
	own := newSecret(host.GetConfig().BearerToken)
	return &mapperResolver{mapper: m, base: base, own: own}, nil
}

type mapperResolver struct {
	mapper restConfigMapper
	base   *rest.Config
	own    secret // the host operator's token, which no extension may get
}

func (*mapperResolver) sealed() {}

func (*mapperResolver) UsesServiceAccounts() bool { return false }

func (*mapperResolver) ServiceAccount(client.Object) (types.NamespacedName, error) {
	return types.NamespacedName{}, nil
}

func (r *mapperResolver) Resolve(ctx context.Context, object client.Object) (Resolved, error) {
	base, err := Anonymous(r.base)
	if err != nil {
		return Resolved{}, err
	}
	mapped, err := r.mapper(ctx, object, base)
	if err != nil {
		return Resolved{}, invalid(err, "the RESTConfigMapper failed")
	}
	if mapped == nil {
		return Resolved{}, invalid(nil, "the RESTConfigMapper returned no config")
	}
	fields := notAccepted(mapped)
	if mapped.Insecure && !r.base.Insecure {
		fields = append(fields, "TLSClientConfig.Insecure")
	}
	if len(fields) > 0 {
		return Resolved{}, invalid(nil, "the RESTConfigMapper set "+strings.Join(fields, ", ")+
			"; it may set Host, APIPath, TLSClientConfig.CAData, TLSClientConfig.ServerName and BearerToken")
	}
	if mapped.BearerToken == "" {
		return Resolved{}, invalid(nil, "the RESTConfigMapper set no BearerToken")
	}
	if mapped.BearerToken == r.own() {
		return Resolved{}, invalid(nil, "the RESTConfigMapper returned the host operator's own token")
	}
	reach, err := Anonymous(mapped)
	if err != nil {
		return Resolved{}, invalid(err, "the RESTConfigMapper's config")
	}
	token := newSecret(mapped.BearerToken)
	digest := sha256.Sum256([]byte(mapped.BearerToken))
	return Resolved{
		Key:    strings.Join([]string{"mapped", reach.Host, reach.APIPath, reach.ServerName, string(reach.CAData), strconv.FormatBool(reach.Insecure), string(digest[:])}, "\x00"),
		Target: reach,
		open:   func() Credential { return &fixedToken{token: token} },
	}, nil
}

// notAccepted names the fields that a mapper must not set.
func notAccepted(c *rest.Config) (fields []string) {
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"Username", c.Username != ""},
		{"Password", c.Password != ""},
		{"BearerTokenFile", c.BearerTokenFile != ""},
		{"Impersonate", c.Impersonate.UserName != "" || c.Impersonate.UID != "" || len(c.Impersonate.Groups)+len(c.Impersonate.Extra) > 0},
		{"AuthProvider", c.AuthProvider != nil},
		{"AuthConfigPersister", c.AuthConfigPersister != nil},
		{"ExecProvider", c.ExecProvider != nil},
		{"TLSClientConfig.CertFile", c.CertFile != ""},
		{"TLSClientConfig.CertData", len(c.CertData) > 0},
		{"TLSClientConfig.KeyFile", c.KeyFile != ""},
		{"TLSClientConfig.KeyData", len(c.KeyData) > 0},
		{"TLSClientConfig.CAFile", c.CAFile != ""},
		{"TLSClientConfig.NextProtos", len(c.NextProtos) > 0},
		{"Transport", c.Transport != nil},
		{"WrapTransport", c.WrapTransport != nil},
		{"RateLimiter", c.RateLimiter != nil},
		{"Dial", c.Dial != nil},
		{"Proxy", c.Proxy != nil},
	} {
		if field.set {
			fields = append(fields, field.name)
		}
	}
	return fields
}

func invalid(cause error, what string) error {
	if cause == nil {
		return errors.Wrap(ErrInvalidCredential, what)
	}
	return errors.Wrap(&joined{kind: ErrInvalidCredential, cause: cause}, what)
}

// fixedToken is a token that nobody here can renew.
type fixedToken struct {
	token  secret
	closed atomic.Bool
}

var _ Credential = (*fixedToken)(nil)

func (*fixedToken) sealed()                       {}
func (*fixedToken) Prepare(context.Context) error { return nil }
func (*fixedToken) Expires() time.Time            { return time.Time{} }
func (*fixedToken) Discard(time.Time)             {}
func (f *fixedToken) Close()                      { f.closed.Store(true) }
func (f *fixedToken) get(context.Context) (secret, error) {
	if f.closed.Load() {
		return nil, errClosed
	}
	return f.token, nil
}

func (f *fixedToken) RoundTripper(next http.RoundTripper) http.RoundTripper {
	return &bearer{token: f.get, next: next}
}
