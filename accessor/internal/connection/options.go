package connection

import (
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// Options configure connections.
type Options struct {
	Scheme      *runtime.Scheme
	Cache       CacheOptions
	Client      ClientOptions
	RBACWatcher *scopedcache.RBACWatcher // watches the cluster of the extensions; nil for none
	Logger      logr.Logger
	// TracerProvider receives the spans of informers; nil for none.
	TracerProvider trace.TracerProvider
	// Fenced is called for each request that did not start, or was cut, because a term had ended. It must
	// not block.
	Fenced func()
}

// CacheOptions are the part of clustercache.CacheOptions that a connection needs.
type CacheOptions struct {
	SyncPeriod           *time.Duration
	DefaultTransform     toolscache.TransformFunc
	ByObject             map[client.Object]cache.ByObject
	Indexes              []CacheIndex
	AccessReviewInterval time.Duration
	IdleTimeout          time.Duration
	PollWithoutWatch     bool
	DisableObjectSharing bool
}

// CacheIndex is a field index of the caches.
type CacheIndex struct {
	Object       client.Object
	Field        string
	ExtractValue client.IndexerFunc
}

// ClientOptions configure the clients of every connection. The limits are per identity.
type ClientOptions struct {
	Timeout   time.Duration
	QPS       float32
	Burst     int
	UserAgent string
	// MaxDiscoveryBytes bounds the memory of one discovery.
	MaxDiscoveryBytes int64
	DisableFor        []client.Object // kinds that the client from GetClient reads from the API server
}
