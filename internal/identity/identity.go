package identity

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// Resolver turns an extension into a credential. Its methods may be called from any goroutine.
type Resolver interface {
	// ServiceAccount returns the ServiceAccount that the object names, zero if this kind of
	// credential uses no ServiceAccounts. ServiceAccount reads only the object. With the error
	// ErrInvalidReference the result is what the object names, if anything, valid or not.
	ServiceAccount(object client.Object) (types.NamespacedName, error)

	// Reference returns what the object names. It reads only the object.
	Reference(object client.Object) (Reference, error)

	// UsesServiceAccounts reports whether ServiceAccount can return a ServiceAccount. If true, the
	// caller of Resolve must call Resolve again when the ServiceAccount changes.
	UsesServiceAccounts() bool

	// Resolve returns the target and the identity of the object's connection. For the reason of an
	// error, use errors.Is. Resolve is called on every reconcile and reads only caches.
	Resolve(ctx context.Context, object client.Object) (Resolution, error)

	// Forget drops all data about an extension that is gone.
	Forget(extension client.ObjectKey)

	// Run updates the data that Resolve reads, until ctx is done. Call Run once. Run calls wake for
	// each extension for which Resolve may return another result than before. wake must not block.
	Run(ctx context.Context, wake func(extension client.ObjectKey))
}

// Reference is what an object says about its credential, and about the options of its cache. Two
// objects with equal References, and in the same version if WholeObject is set, have the same of
// both.
type Reference struct {
	// Name is the ServiceAccount or Secret that the object names, with the provider that uses it, and
	// the version of the cache's options for the object.
	Name string
	// WholeObject is set if any part of the object may determine the credential.
	WholeObject bool
}

// Resolution is the identity that an extension is to act as, and the API server to connect to.
type Resolution struct {
	// Key is equal for two Resolutions exactly when one connection can serve both. Their targets
	// are then equal, and so are their identities, as far as known before the API server states the
	// identity.
	Key string
	// Version changes when the secret behind the same Key changes. A connection starts to use the
	// new secret after the API server has stated that the secret belongs to the same identity.
	Version string
	// Source is the origin of the credential for messages: a ServiceAccount or a Secret. Source is
	// set even if Resolve fails for another reason.
	Source string
	// Reference is what the object names, as Reference of the Resolver returns it.
	Reference Reference
	// KeepCurrent is set with ErrInvalidCredential if the current content of Source cannot be used.
	// The connection may continue with an earlier credential from Source, as long as that
	// credential works.
	KeepCurrent bool
	// Target is the config for the API server, without a credential.
	Target *rest.Config
	// Expected is the identity that the API server must state. Fields that are not known in advance
	// are empty.
	Expected connstate.Identity
	// UID is the UID of the identity. UID is used where the API server does not state the UID, as
	// under impersonation.
	UID types.UID
	// Impersonated is set if requests impersonate the identity with another user's credential: the
	// host operator's, or that of a kubeconfig. If the API server denies even the SelfSubjectReview,
	// that user lacks permission to impersonate.
	Impersonated bool
	// UntrustedServer is set if the provider of the credential may choose the target. Of its
	// answers to reviews and to informers, errors show only the HTTP status.
	UntrustedServer bool
	// Sharable is set if Resolutions with equal Key, Version and Target are certainly of one user, so
	// that their connections may share what that user sees.
	Sharable bool
	// ServiceAccount is the ServiceAccount that the object names, zero if the object names none.
	// ServiceAccount is set even if Resolve fails for another reason.
	ServiceAccount types.NamespacedName

	// ByObject are the cache's options for this connection alone, in addition to those of every
	// connection. Key names their version.
	ByObject map[client.Object]cache.ByObject

	// OpenFunc opens the credential; see Open.
	OpenFunc func() Credential
}

// Open returns the credential. The caller must close it.
func (r Resolution) Open() Credential { return r.OpenFunc() }

// WithoutOpen returns r without the means to open the credential, which may hold the secret.
func (r Resolution) WithoutOpen() Resolution {
	r.OpenFunc = nil
	return r
}

// Credential proves one identity to an API server. Its methods may be called from any goroutine.
type Credential interface {
	// Prepare obtains the secret that requests need, so that a failure shows before the first
	// request. Prepare reuses a secret that is still valid. For the reason of an error, use
	// errors.Is.
	Prepare(ctx context.Context) error
	// RoundTripper returns a RoundTripper that sends every request through next with this identity,
	// and with no other.
	//
	// If there is no valid secret, the request fails and is not sent. A request that gets a 401 is
	// sent once more if there is a newer secret and the body can be read again. If a server or
	// proxy quotes the secret in headers, errors or error bodies, the RoundTripper removes it.
	RoundTripper(next http.RoundTripper) http.RoundTripper
	// TransportRequirement returns what next must provide, in addition to a connection to the
	// target.
	TransportRequirement() TransportRequirement
	// Expires returns the expiry of the current secret, zero if the secret does not expire or its
	// expiry is unknown.
	Expires() time.Time
	// Discard drops a secret that was obtained before the given time, because the API server did
	// not accept that secret.
	Discard(before time.Time)
	// Close drops the secret. Later requests fail.
	Close()
}

// Impersonator is a Credential whose requests impersonate another user than its own.
type Impersonator interface {
	Credential
	// OwnRoundTripper returns a RoundTripper that sends every request through next as the
	// credential's own user. The API server must state both users before either is trusted.
	OwnRoundTripper(next http.RoundTripper) http.RoundTripper
}

// TransportRequirement describes the transport that a credential needs. The zero value accepts any
// transport to the target.
type TransportRequirement struct {
	// Certificate, if set, returns the client certificate for TLS handshakes.
	Certificate func() *tls.Certificate
	// Transport, if set, is the transport that must carry the requests.
	Transport http.RoundTripper
}

// Shared reports whether the transport that all members of a target share is sufficient.
func (c TransportRequirement) Shared() bool { return c.Certificate == nil && c.Transport == nil }
