package credential

import (
	"context"
	"os"
	"strings"

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
// Accepted are Host, APIPath, TLSClientConfig.CAData and TLSClientConfig.ServerName, and exactly one credential: BearerToken, or
// TLSClientConfig.CertData and KeyData. It must not be the host operator's own. Timeout, QPS, Burst, UserAgent,
// ContentConfig, DisableCompression and warning handlers are ignored: connections have their own. Everything else is an error
// that names the field: it could run programs, open files, switch verification off, or smuggle in another identity.
//
// The identity is learned from the first probe and pinned. A new token or certificate is taken up in place once the API
// server has stated the same identity for it; if it states another, or the target changed, the extension gets a new
// connection. mapper is called whenever the extension changes and before each probe and
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
	return &mapperResolver{mapper: m, base: base, own: ownCredential{config: host.GetConfig()}}, nil
}

type mapperResolver struct {
	mapper restConfigMapper
	base   *rest.Config
	own    ownCredential // which no extension may get
}

// Forget implements Resolver.
func (*mapperResolver) Forget(client.ObjectKey) {}

// Run implements Resolver; a mapper has no way to tell of changes.
func (*mapperResolver) Run(context.Context, func(client.ObjectKey)) {}

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
			"; it may set Host, APIPath, TLSClientConfig.CAData, TLSClientConfig.ServerName, and BearerToken or TLSClientConfig.CertData and KeyData")
	}
	if r.own.is(mapped) {
		return Resolved{}, invalid(nil, "the RESTConfigMapper returned the host operator's own credential")
	}
	made, err := newProof(mapped.BearerToken, mapped.CertData, mapped.KeyData)
	if err != nil {
		return Resolved{}, errors.WithMessage(err, "the RESTConfigMapper's config")
	}
	reach, err := Anonymous(mapped)
	if err != nil {
		return Resolved{}, invalid(err, "the RESTConfigMapper's config")
	}
	return Resolved{Key: "mapped\x00" + targetKey(reach), Version: made.version, Target: reach, open: made.open}, nil
}

// ownCredential is that of the host operator.
type ownCredential struct{ config *rest.Config }

// is reports whether the config carries the host operator's token or certificate, also where its own is in a file.
func (o ownCredential) is(c *rest.Config) bool {
	same := func(value, own, file string) bool {
		if value == "" {
			return false
		}
		if file != "" {
			if content, err := os.ReadFile(file); err == nil && value == strings.TrimSpace(string(content)) {
				return true
			}
		}
		return value == strings.TrimSpace(own)
	}
	return same(strings.TrimSpace(c.BearerToken), o.config.BearerToken, o.config.BearerTokenFile) ||
		same(strings.TrimSpace(string(c.KeyData)), string(o.config.KeyData), o.config.KeyFile)
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
		{"TLSClientConfig.KeyFile", c.KeyFile != ""},
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
