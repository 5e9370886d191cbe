package accessor

import (
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/degraded"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/statechanges"
	"github.com/latchkey-dev/latchkey/internal/tracing"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// What configures connections.
type (
	// ClientOptions configure clients.
	ClientOptions = connection.ClientOptions
	// CacheOptions configure caches.
	CacheOptions = connection.CacheOptions
)

// Options configure a Set. Every field must be set. SetupWithManager sets defaults for the fields
// that its callers omit.
type Options struct {
	Scheme               *runtime.Scheme
	CheckKey             func(client.ObjectKey) error // why no extension can have the key; nil for any key
	Cache                CacheOptions
	Client               ClientOptions
	HealthProbe          connstate.ProbeOptions
	ConnectBackoff       wait.Backoff
	PerExtension         bool                          // metrics have series for every extension
	RBACWatcher          *scopedcache.RBACWatcher      // watches the cluster of the extensions; nil for none
	Namespaces           *scopedcache.NamespaceWatcher // of the cluster of the extensions; nil for none
	Logger               logr.Logger
	Metrics              *metrics.Cache    // may be nil
	Tracer               *tracing.Tracer   // may be nil
	Shared               *Shared           // what the sets of a manager use together; nil if there is one set only
	Leads                func() bool       // whether this replica has all extensions; nil unless one replica leads
	Record               bool              // each extension has a record of permissions
	Muted                []degraded.Reason // reasons for which extensions do not count as degraded
	IgnoreMuteAnnotation bool              // extensions mute nothing by themselves
	ReplicasShare        bool              // replicas share the extensions: accessors are given up one by one

	// Wake requests a Reconcile of that extension soon. Wake must not block.
	Wake func(client.ObjectKey)
	// Changed reports that the extension connected or disconnected, was removed, or gained or lost
	// access to a kind. object is the extension as last reconciled. object is shared and must not
	// be changed. Changed must not block.
	Changed func(object client.Object)
	// States receives the keys of the extensions whose states have changed; nil for none.
	States *statechanges.Hub
}
