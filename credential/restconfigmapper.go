package credential

import (
	"bytes"
	"context"
	"strings"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/tracing"
)

// FromRESTConfigMapper is the provider for credentials that no other provider supports. mapper sets
// a credential on its config argument, and returns the config. It may be called from any goroutine
// and must read only caches. The argument is a copy, connects to the API server of the extensions,
// and has no credential.
//
// mapper may set Host, APIPath, TLSClientConfig.CAData and TLSClientConfig.ServerName, and must set
// exactly one credential: BearerToken, or TLSClientConfig.CertData and KeyData. The host operator's
// own credential is refused. Timeout, QPS, Burst, UserAgent, ContentConfig, DisableCompression and
// warning handlers are ignored, because connections have their own. Any other field is an error
// that names the field: the field could run a program, open a file, disable verification, or add
// another identity.
//
// The first probe determines the identity, which is then pinned. A new token or certificate is used
// without a new connection after the API server has stated the same identity for it. If the API
// server states another identity, or the target changed, the extension gets a new connection.
//
// An error of mapper ends the connection. If mapper does not know the current credential, return
// the previous one. The same state must give the same token: a token that is created anew with each
// call counts as a new credential each time. The text of mapper's errors is shown to users, so
// errors must not contain secrets.
//
// mapper is called whenever the extension changes and before each probe and connect. A token that
// changed elsewhere is therefore noticed within IdentityInterval.
func FromRESTConfigMapper(mapper func(context.Context, client.Object, *rest.Config) (*rest.Config, error)) Provider {
	return restConfigMapper(mapper)
}

type restConfigMapper func(context.Context, client.Object, *rest.Config) (*rest.Config, error)

func (restConfigMapper) sealed() {}

func (m restConfigMapper) Bind(host cluster.Cluster, _ identity.Kind,
	_ *metrics.Cache, _ *tracing.Tracer) (identity.Resolver, error) {
	if m == nil {
		return nil, errors.New("FromRESTConfigMapper needs a function")
	}
	base, err := identity.Anonymous(host.GetConfig())
	if err != nil {
		return nil, err
	}
	return &mapperResolver{mapper: m, base: base, hostCredential: &ownCredential{config: host.GetConfig()}}, nil
}

type mapperResolver struct {
	mapper         restConfigMapper
	base           *rest.Config
	hostCredential *ownCredential // no extension may get this credential
}

// Forget implements Resolver.
func (*mapperResolver) Forget(client.ObjectKey) {}

// Run implements Resolver. A mapper has no way to report changes.
func (*mapperResolver) Run(context.Context, func(client.ObjectKey)) {}

func (*mapperResolver) UsesServiceAccounts() bool { return false }

func (*mapperResolver) ServiceAccount(client.Object) (types.NamespacedName, error) {
	return types.NamespacedName{}, nil
}

// Reference implements Resolver. Only the mapper knows.
func (*mapperResolver) Reference(client.Object) (identity.Reference, error) {
	return identity.Reference{WholeObject: true}, nil
}

func (r *mapperResolver) Resolve(ctx context.Context, object client.Object) (identity.Resolution, error) {
	base, err := identity.Anonymous(r.base)
	if err != nil {
		return identity.Resolution{}, err
	}
	mapped, err := r.mapper(ctx, object, base)
	if err != nil {
		return identity.Resolution{}, invalid(err, "the RESTConfigMapper failed")
	}
	if mapped == nil {
		return identity.Resolution{}, invalid(nil, "the RESTConfigMapper returned no config")
	}
	fields := notAccepted(mapped)
	if mapped.Insecure && !r.base.Insecure {
		fields = append(fields, "TLSClientConfig.Insecure")
	}
	if len(fields) > 0 {
		return identity.Resolution{}, invalid(nil, "the RESTConfigMapper set "+strings.Join(fields, ", ")+
			"; it may set Host, APIPath, TLSClientConfig.CAData, TLSClientConfig.ServerName, and BearerToken or "+
			"TLSClientConfig.CertData and KeyData")
	}
	if r.hostCredential.matches(mapped) {
		return identity.Resolution{}, invalid(nil, "the RESTConfigMapper returned the host operator's own credential")
	}
	p, err := newSecretMaterial(mapped.BearerToken, mapped.CertData, mapped.KeyData)
	if err != nil {
		return identity.Resolution{}, errors.WithMessage(err, "the RESTConfigMapper's config")
	}
	if authorities := mapped.CAData; len(authorities) > 0 && !bytes.Equal(authorities, r.base.CAData) {
		if err := checkAuthorities(authorities); err != nil {
			return identity.Resolution{}, invalid(nil, "the RESTConfigMapper's TLSClientConfig.CAData "+err.Error())
		}
	}
	reach, err := identity.Anonymous(mapped)
	switch {
	case err != nil:
		return identity.Resolution{}, invalid(err, "the RESTConfigMapper's config")
	case p.certificate != nil && !strings.HasPrefix(reach.Host, "https://"):
		return identity.Resolution{}, invalid(nil, "the RESTConfigMapper set a client certificate for a server without TLS")
	}
	return identity.Resolution{
		Key:             "mapped\x00" + targetKey(reach),
		Version:         p.version,
		Target:          reach,
		Reference:       identity.Reference{WholeObject: true},
		UntrustedServer: reach.Host != r.base.Host,
		OpenFunc:        p.open,
	}, nil
}

// notAccepted returns the names of the fields that are set but that a mapper must not set.
func notAccepted(c *rest.Config) (fields []string) {
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"Username", c.Username != ""},
		{"Password", c.Password != ""},
		{"BearerTokenFile", c.BearerTokenFile != ""},
		{"Impersonate", c.Impersonate.UserName != "" || c.Impersonate.UID != "" ||
			len(c.Impersonate.Groups)+len(c.Impersonate.Extra) > 0},
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
