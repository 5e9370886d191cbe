package credential

import (
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/tracing"
)

// Provider is the configuration for one source of credentials, for clustercache.Options. The
// interface is sealed: FromRESTConfigMapper is the way in for other credentials.
type Provider interface{ provider }

// provider is what clustercache needs of a Provider. It is not exported, so that the documentation
// shows no internal types.
//
// To add a provider: write a type with Bind and sealed, and an identity.Resolver, whose Resolve
// reads caches only; restconfigmapper.go has the smallest one. newSecretMaterial checks a token or
// a certificate, and its open is the OpenFunc of a Resolution. If code of the host operator sets
// the credential, refuse the host operator's own (owncredential.go). Then name the provider in
// doc.go, in the README and in docs/security.md, and its options in hack/reference/main.go; run
// make generate.
type provider interface {
	// Bind returns the source of credentials for the extensions of the given kind on the host
	// cluster, or an error for options with which no extension could be resolved. Bind does no I/O.
	// Only clustercache calls Bind.
	Bind(host cluster.Cluster, kind identity.Kind,
		counts *metrics.Cache, tracer *tracing.Tracer) (identity.Resolver, error)

	sealed()
}
