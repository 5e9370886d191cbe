package apiserver

import (
	"cmp"
	"net"

	"github.com/pkg/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/compatibility"
	openapicommon "k8s.io/kube-openapi/pkg/common"
)

// ExtensionAPIServerOptions configure a server.
type ExtensionAPIServerOptions struct {
	// GetOpenAPIDefinitions returns the definitions of the installed types, as openapi-gen
	// generates them. The definitions of metav1 are added. Required.
	GetOpenAPIDefinitions openapicommon.GetOpenAPIDefinitions
	// OpenAPIDefinitionNameReplacements shorten the names of definitions whose types have no method
	// OpenAPIModelName: a name that contains a key has the value in its place.
	OpenAPIDefinitionNameReplacements map[string]string

	// Client asks the API server in front who sends requests and what they may do. The identity of
	// Client needs ClusterRole system:auth-delegator, and Role
	// extension-apiserver-authentication-reader in namespace kube-system. Answers about a token are
	// kept for 10 seconds, permissions for 10 and denials for 5. Other requests cost one review or
	// two, so the rate limit of Client bounds them: client-go's default of 5 per second is too low.
	// Required unless Authenticator and Authorizer are set.
	Client kubernetes.Interface
	// Authenticator, if not nil, says who sent a request. By default requests must come through the
	// API server in front, or have a token that this API server accepts. A request without either
	// gets 401, also for /healthz. What the API server in front lets pass as system:anonymous has
	// that name here, and what permissions it has.
	Authenticator authenticator.Request
	// Authorizer, if not nil, says what a user may do. By default the API server in front decides,
	// by SubjectAccessReviews.
	Authorizer authorizer.Authorizer
	// ClientCA are the certificate authorities whose client certificates Authenticator accepts. Set
	// it only with an Authenticator that looks at certificates.
	ClientCA dynamiccertificates.CAContentProvider

	// Certificate is the serving certificate. It may change while the server runs: use
	// dynamiccertificates.NewDynamicServingContentFromFiles for files. Required.
	Certificate dynamiccertificates.CertKeyContentProvider
	// SNICertificates are the certificates for other names of the server.
	SNICertificates []dynamiccertificates.SNICertKeyContentProvider
	// Listener is where the server listens; Run closes it. By default Run listens on BindAddress.
	Listener net.Listener
	// BindAddress is the address to listen on without a Listener. Defaults to ":6443".
	BindAddress string

	// MaxWatchesPerUser is how many watches one user may have open. One more gets status 429, which
	// says so. Defaults to 100.
	MaxWatchesPerUser int
	// MaxWatches is how many watches the server serves in all. One more gets status 429, which says
	// so. Defaults to 1000.
	MaxWatches int

	// EffectiveVersion decides which features of the library are on. nil is the library's default.
	EffectiveVersion compatibility.EffectiveVersion
}

func (o *ExtensionAPIServerOptions) complete() error {
	switch {
	case o.GetOpenAPIDefinitions == nil:
		return errors.New("GetOpenAPIDefinitions is missing: generate it with openapi-gen")
	case o.Certificate == nil:
		return errors.New("Certificate is missing: the API server in front requires TLS")
	case o.Client == nil && o.Authenticator == nil:
		return errors.New("Client or Authenticator is missing: every request must be authenticated")
	case o.Client == nil && o.Authorizer == nil:
		return errors.New("Client or Authorizer is missing: every request must be authorized")
	case o.ClientCA != nil && o.Authenticator == nil:
		return errors.New("ClientCA needs an Authenticator")
	case o.MaxWatchesPerUser < 0 || o.MaxWatches < 0:
		return errors.New("MaxWatchesPerUser and MaxWatches must not be negative")
	}
	o.MaxWatchesPerUser, o.MaxWatches = cmp.Or(o.MaxWatchesPerUser, 100), cmp.Or(o.MaxWatches, 1000)
	if o.BindAddress == "" {
		o.BindAddress = ":6443"
	}
	return nil
}
