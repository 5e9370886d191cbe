package accessor

import (
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// CacheOptions configure the cache of every connection.
type CacheOptions struct {
	// SyncPeriod is how often every object is delivered again to the handlers of watches. Defaults
	// to 10 h.
	SyncPeriod *time.Duration
	// DefaultTransform is applied to every object before it is cached, unless ByObject has another
	// for its kind. It is called by many informers at the same time, and a panic ends the process;
	// so it is with ByObject and Indexes.
	DefaultTransform toolscache.TransformFunc
	// ByObject restricts or transforms what is cached of a kind. Namespaces must not be set: what
	// is cached follows from what is read.
	ByObject map[client.Object]cache.ByObject
	// Indexes are added to the informers of their objects' kinds and representations.
	Indexes []CacheOptionsIndex
	// AccessReviewInterval is how often the API server is asked whether the identity may still
	// watch what is watched, and whether it may now what it might not: each time 80 to 100 % of it
	// after the time before. Defaults to 60 s. A right that was revoked is lost after that and
	// about 2 s. It costs a SelfSubjectAccessReview for each informer, outside of Client.QPS, and
	// more where it is Forbidden: see docs/operations.md.
	AccessReviewInterval time.Duration
	// IdleTimeout is how long an informer goes on that was started by a read and is not read any
	// more, up to twice as long. 0 keeps it as long as the connection.
	IdleTimeout time.Duration
	// PollWithoutWatch: where the identity may list and not watch, list instead:
	// AccessReviewInterval, and up to a minute more, apart. Otherwise it is Forbidden.
	PollWithoutWatch bool
	// WatchRBAC has the host operator watch Roles, ClusterRoles and their bindings in the cluster
	// of the extensions, once for all connections to it, so that revoked and granted rights are
	// noticed within seconds, or within AccessReviewInterval and about 2 s while the rights of that
	// very identity, or of its groups, change all the time. If it may not
	// (config/rbac/rbac-events.yaml) the log says so, and AccessReviewInterval it is; so it is at
	// the API servers of kubeconfigs.
	WatchRBAC bool
}

// CacheOptionsIndex is a field index of the caches, to list with client.MatchingFields.
type CacheOptionsIndex struct {
	// Object is of the kind, and in the representation, that is indexed.
	Object client.Object
	// Field is the name to list by.
	Field string
	// ExtractValue returns an object's values of the field.
	ExtractValue client.IndexerFunc
}

// ClientOptions configure the clients of every connection; the limits are per identity.
type ClientOptions struct {
	// Timeout bounds each request but watches, and each cached read. Defaults to 10 s.
	Timeout time.Duration
	// QPS and Burst limit the requests of one identity, probes and access reviews excepted. They
	// default to 20 and 30.
	QPS   float32
	Burst int
	// UserAgent names the host operator to API servers. It is required; each connection appends its
	// extension's key.
	UserAgent string
	// Cache says which reads bypass the cache.
	Cache ClientCacheOptions
}

// ClientCacheOptions say which reads of GetClient bypass the cache.
type ClientCacheOptions struct {
	// DisableFor lists objects whose kinds are always read live.
	DisableFor []client.Object
}

// MetricsOptions say what is told to Prometheus.
type MetricsOptions struct {
	// PerExtension adds series for every extension; they are gone with it. Mind how many extensions
	// there are.
	PerExtension bool
}

// Options configure a Set. Everything must be set; SetupWithManager defaults what its callers leave
// out.
type Options struct {
	Scheme         *runtime.Scheme
	Cache          CacheOptions
	Client         ClientOptions
	HealthProbe    healthprobe.Options
	ConnectBackoff wait.Backoff
	Metrics        MetricsOptions
	RBACWatcher    *scopedcache.RBACWatcher // of the cluster of the extensions; nil for none
	Logger         logr.Logger

	// Wake asks for a Reconcile of that extension soon. It must not block.
	Wake func(client.ObjectKey)
	// Changed tells that the extension connected, disconnected, went away, or lost or won a right
	// or a kind. object is as last reconciled, and shared: it must not be changed. It must not
	// block.
	Changed func(object client.Object)
}
