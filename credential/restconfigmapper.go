package credential

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
)

// FromRESTConfigMapper is the provider for everything that the others do not cover: mapper sets a
// credential on the config that it is given, which reaches the API server of the extensions, holds
// no credential, and is a copy. It may be called from any goroutine and must only read caches.
//
// Accepted are Host, APIPath, TLSClientConfig.CAData and TLSClientConfig.ServerName, and exactly
// one credential: BearerToken, or TLSClientConfig.CertData and KeyData. It must not be the host
// operator's own. Timeout, QPS, Burst, UserAgent, ContentConfig, DisableCompression and warning
// handlers are ignored: connections have their own. Everything else is an error that names the
// field: it could run programs, open files, switch verification off, or smuggle in another
// identity.
//
// The identity is learned from the first probe and pinned. A new token or certificate is taken up
// in place once the API server has stated the same identity for it; if it states another, or the
// target changed, the extension gets a new connection. An error ends the connection: return what
// you returned before if you mean "not known now". The same state must give the same token: one
// that is made anew with every call is a new credential with every call. mapper is called whenever
// the extension changes and before each probe and connect, so a token that changed elsewhere is
// noticed within IdentityInterval. The text of its errors is shown to people: keep secrets out of
// it.
func FromRESTConfigMapper(mapper func(context.Context, client.Object, *rest.Config) (*rest.Config, error)) Provider {
	return restConfigMapper(mapper)
}

type restConfigMapper func(context.Context, client.Object, *rest.Config) (*rest.Config, error)

func (restConfigMapper) sealed() {}

func (m restConfigMapper) Bind(host cluster.Cluster, _ Kind) (Resolver, error) {
	if m == nil {
		return nil, errors.New("FromRESTConfigMapper needs a function")
	}
	base, err := Anonymous(host.GetConfig())
	if err != nil {
		return nil, err
	}
	return &mapperResolver{mapper: m, base: base, own: &ownCredential{config: host.GetConfig()}}, nil
}

type mapperResolver struct {
	mapper restConfigMapper
	base   *rest.Config
	own    *ownCredential // which no extension may get
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

func (r *mapperResolver) Resolve(ctx context.Context, object client.Object) (Resolution, error) {
	base, err := Anonymous(r.base)
	if err != nil {
		return Resolution{}, err
	}
	mapped, err := r.mapper(ctx, object, base)
	if err != nil {
		return Resolution{}, invalid(err, "the RESTConfigMapper failed")
	}
	if mapped == nil {
		return Resolution{}, invalid(nil, "the RESTConfigMapper returned no config")
	}
	fields := notAccepted(mapped)
	if mapped.Insecure && !r.base.Insecure {
		fields = append(fields, "TLSClientConfig.Insecure")
	}
	if len(fields) > 0 {
		return Resolution{}, invalid(nil, "the RESTConfigMapper set "+strings.Join(fields, ", ")+
			"; it may set Host, APIPath, TLSClientConfig.CAData, TLSClientConfig.ServerName, and BearerToken or "+
			"TLSClientConfig.CertData and KeyData")
	}
	if r.own.is(mapped) {
		return Resolution{}, invalid(nil, "the RESTConfigMapper returned the host operator's own credential")
	}
	made, err := newProof(mapped.BearerToken, mapped.CertData, mapped.KeyData)
	if err != nil {
		return Resolution{}, errors.WithMessage(err, "the RESTConfigMapper's config")
	}
	if authorities := mapped.CAData; len(authorities) > 0 && !bytes.Equal(authorities, r.base.CAData) {
		if err := checkAuthorities(authorities); err != nil {
			return Resolution{}, invalid(nil, "the RESTConfigMapper's TLSClientConfig.CAData "+err.Error())
		}
	}
	reach, err := Anonymous(mapped)
	switch {
	case err != nil:
		return Resolution{}, invalid(err, "the RESTConfigMapper's config")
	case made.certificate != nil && !strings.HasPrefix(reach.Host, "https://"):
		return Resolution{}, invalid(nil, "the RESTConfigMapper set a client certificate for a server without TLS")
	}
	return Resolution{Key: "mapped\x00" + targetKey(reach), Version: made.version, Target: reach,
		UntrustedServer: reach.Host != r.base.Host, open: made.open}, nil
}

// ownCredential knows that of the host operator: token or client key, also what its files held
// since the start.
type ownCredential struct {
	config *rest.Config

	mu    sync.Mutex
	read  time.Time       // guarded by mu; the files, last
	known map[string]bool // guarded by mu; digests of tokens and of public keys
}

// ownFilesEvery is how often the host operator's files are looked at.
const ownFilesEvery = 10 * time.Second

// is reports whether the config carries the host operator's own token or client key, in whatever
// form.
func (o *ownCredential) is(c *rest.Config) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known == nil {
		o.known = map[string]bool{}
		o.addLocked(o.config.BearerToken, o.config.CertData)
	}
	if now := time.Now(); now.Sub(o.read) >= ownFilesEvery {
		o.read = now
		token, _ := os.ReadFile(cmp.Or(o.config.BearerTokenFile, os.DevNull)) // one that cannot be read is not in use
		certificate, _ := os.ReadFile(cmp.Or(o.config.CertFile, os.DevNull))
		o.addLocked(string(token), certificate)
	}
	return c.BearerToken != "" && o.known[tokenDigest(c.BearerToken)] || len(c.CertData) > 0 &&
		o.known[publicKeyDigest(c.CertData)]
}

func (o *ownCredential) addLocked(token string, certPEM []byte) {
	if strings.TrimSpace(token) != "" {
		o.known[tokenDigest(token)] = true
	}
	if key := publicKeyDigest(certPEM); key != "" {
		o.known[key] = true
	}
}

func tokenDigest(token string) string {
	return digest([]byte("token"), []byte(strings.TrimSpace(token)))
}

// publicKeyDigest names the key of the first certificate, "" if there is none.
func publicKeyDigest(certPEM []byte) string {
	for block, rest := pem.Decode(certPEM); block != nil; block, rest = pem.Decode(rest) {
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
			return digest([]byte("key"), certificate.RawSubjectPublicKeyInfo)
		}
	}
	return ""
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
