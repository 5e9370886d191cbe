package credential

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/healthprobe"
)

// Provider is where credentials come from. It is configuration; Bind brings it to life. It is
// sealed.
type Provider interface {
	// Bind returns a Resolver that works on the cluster in which the extensions live, of that kind.
	// It does no I/O, and fails on options that no extension could be resolved with.
	Bind(host cluster.Cluster, kind Kind) (Resolver, error)

	sealed()
}

// Resolver turns an extension into a credential. Its methods may be called from any goroutine.
type Resolver interface {
	// ServiceAccount returns the ServiceAccount that the object names, zero if this kind of
	// credential names none. It looks at nothing but the object. The error is ErrInvalidReference.
	ServiceAccount(object client.Object) (types.NamespacedName, error)

	// UsesServiceAccounts reports whether ServiceAccount ever returns one. If so, whoever calls
	// Resolve does it again when the ServiceAccount changes.
	UsesServiceAccounts() bool

	// Resolve says what the object is to connect as. It is called on every reconcile and reads
	// caches only. errors.Is tells the reason.
	Resolve(ctx context.Context, object client.Object) (Resolution, error)

	// Forget tells that the extension is gone, and that nothing needs to be kept for it.
	Forget(extension client.ObjectKey)

	// Run keeps up to date what Resolve reads, until ctx is done; call it once. wake is called for
	// extensions whose Resolve may answer differently than before. It must not block.
	Run(ctx context.Context, wake func(extension client.ObjectKey))

	sealed()
}

// Resolution is whom an extension is to act as, and where.
type Resolution struct {
	// Key is equal for two results exactly when a connection made for one serves the other: the
	// target is the same, and so is the identity, as far as it is known before the API server has
	// stated it.
	Key string
	// Version changes when the secret behind the same Key does. A connection takes up the new one
	// once the API server has stated that it is the same identity's.
	Version string
	// Source names where the credential comes from: a ServiceAccount or a Secret, for people. It is
	// set even where Resolve fails for another reason.
	Source string
	// KeepCurrent is set with ErrInvalidCredential if what is at Source now cannot be used,
	// although an earlier credential from there, while it works, still can.
	KeepCurrent bool
	// Target reaches the API server and holds no credential.
	Target *rest.Config
	// Expected is the identity that the server must state. Fields that cannot be known beforehand
	// are empty.
	Expected healthprobe.Identity
	// UID is that of the identity where the server does not state it, as under impersonation.
	UID types.UID
	// Impersonated is set if the server was asked to take the host operator for the identity: a
	// server that denies it even the question who we are then denies the impersonation.
	Impersonated bool
	// UntrustedServer is set if the target may be chosen by whoever provides the credential: what
	// it answers is not shown.
	UntrustedServer bool
	// ServiceAccount is whom the object names, zero if nobody. It is set even where Resolve fails
	// for another reason.
	ServiceAccount types.NamespacedName

	open func() Credential
}

// Open returns the credential. Whoever opens it closes it.
func (r Resolution) Open() Credential { return r.open() }

// Credential proves one identity. Its methods may be called from any goroutine.
type Credential interface {
	// Prepare obtains what requests need, so that a failure shows before the first of them. It uses
	// what is still valid. errors.Is tells the reason.
	Prepare(ctx context.Context) error
	// RoundTripper returns next with this identity, and no other, on every request. Where there is
	// no valid secret the request fails and nothing is sent. A request that is refused with a 401
	// is sent once more where there is a newer secret and its body can be read again. What a server
	// or proxy echoes of the secret, in headers, errors or bodies of errors, is removed.
	RoundTripper(next http.RoundTripper) http.RoundTripper
	// TransportRequirement is what next must be, beside reaching the target.
	TransportRequirement() TransportRequirement
	// Expires is when the secret now in use expires, zero if it does not or that is not known.
	Expires() time.Time
	// Discard forgets a secret that was obtained before the given time, because the server did not
	// accept it.
	Discard(before time.Time)
	// Close gives the secret up. Requests after that fail.
	Close()

	sealed()
}

// TransportRequirement says what must carry the requests of a credential. Zero is anything that
// reaches the target.
type TransportRequirement struct {
	// Certificate returns the client certificate to show in TLS handshakes.
	Certificate func() *tls.Certificate
	// Transport carries the requests itself.
	Transport http.RoundTripper
}

// Shared reports whether the transport that the target's members share will do.
func (c TransportRequirement) Shared() bool { return c.Certificate == nil && c.Transport == nil }
