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
// reads caches only (fixed.go has the smallest one); newSecretMaterial makes a credential of a
// token or a certificate. A provider that reads what others write refuses the host operator's own
// credential (owncredential.go). Then name it in doc.go, in the README and in docs/security.md, and
// its options in hack/reference/main.go; run make generate.
type provider interface {
	// Bind returns the source of credentials for the extensions of the given kind on the host
	// cluster, or an error for options with which no extension could be resolved. Bind does no I/O.
	// Only clustercache calls Bind.
	Bind(host cluster.Cluster, kind identity.Kind,
		counts *metrics.Cache, tracer *tracing.Tracer) (identity.Resolver, error)

	sealed()
}
