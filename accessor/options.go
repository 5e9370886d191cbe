package accessor

import (
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// Options of connections, by the names that clustercache gives its users.
type (
	// CacheOptions configure the cache of every connection.
	CacheOptions = connection.CacheOptions
	// CacheOptionsIndex is a field index of the caches.
	CacheOptionsIndex = connection.CacheOptionsIndex
	// ClientOptions configure the clients of every connection.
	ClientOptions = connection.ClientOptions
	// ClientCacheOptions configure which reads bypass the cache.
	ClientCacheOptions = connection.ClientCacheOptions
)

// MetricsOptions configure the metrics.
type MetricsOptions struct {
	// PerExtension adds series for every extension. The series of an extension end with the
	// extension. The number of series grows with the number of extensions.
	PerExtension bool
}

// Options configure a Set. Every field must be set. SetupWithManager sets defaults for the fields
// that its callers omit.
type Options struct {
	Scheme         *runtime.Scheme
	Cache          CacheOptions
	Client         ClientOptions
	HealthProbe    healthprobe.Options
	ConnectBackoff wait.Backoff
	Metrics        MetricsOptions
	RBACWatcher    *scopedcache.RBACWatcher // watches the cluster of the extensions; nil for none
	Logger         logr.Logger

	// Wake requests a Reconcile of that extension soon. Wake must not block.
	Wake func(client.ObjectKey)
	// Changed reports that the extension connected or disconnected, was removed, or gained or lost
	// access to a kind. object is the extension as last reconciled. object is shared and must not
	// be changed. Changed must not block.
	Changed func(object client.Object)
}
