package credential

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/healthprobe"
)

// Errors that say why an extension has no credential, for errors.Is.
var (
	// ErrInvalidReference: the extension names no ServiceAccount, or none that can exist.
	ErrInvalidReference = errors.New("invalid reference to a ServiceAccount")
	// ErrServiceAccountNotFound: the ServiceAccount does not exist, or no longer with the UID that was seen.
	ErrServiceAccountNotFound = errors.New("ServiceAccount not found")
	// ErrTokenRequestFailed: the API server answered, but gave no token.
	ErrTokenRequestFailed = errors.New("token request failed")
	// ErrInvalidCredential: what was provided cannot be used as a credential.
	ErrInvalidCredential = errors.New("invalid credential")
)

// Provider is where credentials come from. It is configuration; Bind brings it to life. It is sealed.
type Provider interface {
	// Bind returns a Resolver that works on the cluster in which the extensions live. It does no I/O.
	Bind(host cluster.Cluster) (Resolver, error)

	sealed()
}

// Resolver turns an extension into a credential. Its methods may be called from any goroutine.
type Resolver interface {
	// ServiceAccount returns the ServiceAccount that the object names, zero if this kind of credential names none.
	// It looks at nothing but the object. The error is ErrInvalidReference.
	ServiceAccount(object client.Object) (types.NamespacedName, error)

	// UsesServiceAccounts reports whether ServiceAccount ever returns one. If so, whoever calls Resolve does it
	// again when the ServiceAccount changes.
	UsesServiceAccounts() bool

	// Resolve says what the object is to connect as. It is called on every reconcile and reads caches only.
	// errors.Is tells the reason.
	Resolve(ctx context.Context, object client.Object) (Resolved, error)

	sealed()
}

// Resolved is whom an extension is to act as, and where.
type Resolved struct {
	// Key is equal for two results exactly when a connection made for one serves the other.
	Key string
	// Target reaches the API server and holds no credential.
	Target *rest.Config
	// Expected is the identity that the server must state. Fields that cannot be known beforehand are empty.
	Expected healthprobe.Identity
	// ServiceAccount is whom the object names, zero if nobody. It is set even where Resolve fails for another reason.
	ServiceAccount types.NamespacedName

	open func() Credential
}

// Open returns the credential. Whoever opens it closes it.
func (r Resolved) Open() Credential { return r.open() }

// Credential proves one identity. Its methods may be called from any goroutine.
type Credential interface {
	// Prepare obtains what requests need, so that a failure shows before the first of them. It uses what is
	// still valid. errors.Is tells the reason.
	Prepare(ctx context.Context) error
	// RoundTripper returns next with this identity, and no other, on every request. Where there is no valid
	// secret the request fails and nothing is sent. What a server or proxy echoes of the secret, in headers, errors or
	// bodies of errors, is removed.
	RoundTripper(next http.RoundTripper) http.RoundTripper
	// Expires is when the secret now in use expires, zero if it does not or there is none.
	Expires() time.Time
	// Discard forgets a secret that was obtained before the given time, because the server did not accept it.
	Discard(before time.Time)
	// Close gives the secret up. Requests after that fail.
	Close()

	sealed()
}

// Anonymous copies what names a server from config and nothing that names a user or limits one: no client
// certificate, token, token file, basic auth, exec or auth provider, impersonation, transport, wrapper, dialer,
// proxy function or rate limiter. CAFile is read, so that the result depends on no file, and Host becomes a whole
// URL, so that it does not depend on what was left out. Tokens are not for everybody on the way to see: a server
// without TLS is refused unless it is on loopback.
func Anonymous(config *rest.Config) (*rest.Config, error) {
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, errors.Wrap(err, "the API server's address")
	}
	switch {
	case server.User != nil:
		return nil, errors.Errorf("the address of API server %s holds a user or password", server.Host)
	case server.Scheme != "https" && !isLoopback(server.Hostname()):
		return nil, errors.Errorf("API server %s is not reached over https, and tokens are not sent in clear text", server.Host)
	}
	anonymous := &rest.Config{
		Host:    server.String(),
		APIPath: config.APIPath,
		TLSClientConfig: rest.TLSClientConfig{
			Insecure:   config.Insecure,
			ServerName: config.ServerName,
			CAData:     append([]byte(nil), config.CAData...),
			CAFile:     config.CAFile,
		},
	}
	if err := rest.LoadTLSFiles(anonymous); err != nil {
		return nil, errors.Wrap(err, "reading the certificate authority of "+server.Host)
	}
	if anonymous.CAFile != "" && len(anonymous.CAData) == 0 {
		return nil, errors.Errorf("the certificate authority file of %s is empty", server.Host)
	}
	anonymous.CAFile = ""
	return anonymous, nil
}

func isLoopback(host string) bool {
	address := net.ParseIP(host)
	return host == "localhost" || address != nil && address.IsLoopback()
}
