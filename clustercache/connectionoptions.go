package clustercache

import (
	"context"
	"time"

	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// CacheOptions configure the cache of every connection.
type CacheOptions struct {
	// SyncPeriod is how often every object is delivered again to the handlers of watches. Defaults
	// to 10 h.
	SyncPeriod *time.Duration
	// DefaultTransform is applied to every object before the object is cached, unless ByObject has
	// another transform for the kind. Many informers call DefaultTransform at the same time, and a
	// panic ends the process. The same applies to the functions in ByObject and Indexes.
	DefaultTransform toolscache.TransformFunc
	// ByObject restricts or transforms which objects of a kind are cached. With Namespaces, a List of
	// all namespaces reads these only, and a read in another one is an error. A watch or a
	// scopedcache.Handle of all namespaces, or with scopedcache.WhereverAllowed, is of these only, as
	// with scopedcache.InNamespaces; one that names others is not restricted. A Role in each of them
	// suffices. Namespaces must not have the empty name, and are for namespaced kinds: a watch of
	// another kind is Failing with them. Without Namespaces, the reads determine which namespaces are
	// cached.
	ByObject map[client.Object]cache.ByObject
	// PerExtension, if not nil, returns options for the cache of one extension's connection. For
	// example, its reads and watches of Secrets can select only those with the label owner=EXTENSION.
	// A Get of another Secret is NotFound then. Other connections are not affected. This is not a
	// security boundary: the identity may still read the other Secrets without the cache.
	//
	// PerExtension must be a function of the object only, and must neither change nor keep it. It is
	// called at each reconcile and by each For, from any goroutine, so it must be fast and must not
	// block. What it returns must not change afterwards. The options count from when the connection
	// is made. If another Version is returned later, the connection ends, another one is made, and
	// For does not return the earlier one for the changed object. A panic, and options that are not
	// valid, have the reason InvalidReference.
	PerExtension func(extension client.Object) CacheOverrides
	// Indexes are added to the informers of their objects' kinds and representations.
	Indexes []CacheOptionsIndex
	// AccessReviewInterval is how often the cache asks the API server about the permissions of the
	// identity. The cache asks whether the identity may still watch what it watches, and whether a
	// Forbidden scope is permitted by now. Two reviews are 80 to 100 % of AccessReviewInterval
	// apart, and ten times as much while WatchRBAC works. Defaults to 60 s. A revoked permission
	// takes effect within that time and about 2 s. Each review costs a SelfSubjectAccessReview for
	// each informer, outside of Client.QPS, and more where the informer is Forbidden: see
	// docs/operations.md.
	AccessReviewInterval time.Duration
	// IdleTimeout is how long an informer that a read has started runs without further reads. The
	// informer ends after IdleTimeout at the earliest, and after twice IdleTimeout at the latest. 0
	// keeps the informer as long as the connection; if it is of a single name, for ten to twenty
	// minutes.
	IdleTimeout time.Duration
	// PollWithoutWatch lists instead of watching where the identity may list but not watch. Two
	// lists are AccessReviewInterval, and up to a minute more, apart. Without PollWithoutWatch such
	// a scope is Forbidden.
	PollWithoutWatch bool
	// MaxNamespaces is how many namespaces a watch of [scopedcache.WhereverAllowed] has at most, where
	// it has one informer for each. OnError receives StatePartial then, and LeftOut of its
	// PartialError says how many are left out. Defaults to 100, also if negative. See MaxNamespaces of
	// [scopedcache.Options].
	MaxNamespaces int
	// WatchRBAC has the host operator watch Roles, ClusterRoles and their bindings in the cluster
	// of the extensions, once for all connections to that cluster. Revoked and granted permissions
	// then take effect within seconds. While the permissions of the identity itself, or of its
	// groups, change continuously, they take effect within AccessReviewInterval and about 2 s. If
	// the host operator may not watch RBAC (config/rbac/rbac-events.yaml), the log reports that,
	// and AccessReviewInterval applies. AccessReviewInterval also applies at the API servers of
	// kubeconfigs. While WatchRBAC works, the reviews that no event causes are ten times as rare.
	// Changes of permissions that no RBAC object shows, such as those of a webhook that authorizes,
	// then take effect within ten times AccessReviewInterval.
	WatchRBAC bool
	// DisableObjectSharing keeps a copy of each object for each identity that sees it. By default
	// the identities at one API server share the objects that are equal in all of their contents;
	// see [scopedcache.ObjectPool]. Handlers of Watch and reads receive copies in either case. So
	// disable sharing only if event handlers or indexers that were added to informers of GetCache
	// change the objects that they receive, which they must not.
	DisableObjectSharing bool
	// DisableIdentitySharing gives each connection informers, access reviews and probes of its own. By
	// default the connections of one ClusterCache that are certainly of one user share them: with
	// ServiceAccountTokens and Impersonation those of the same ServiceAccount, except those that have
	// ByObject from PerExtension. They have one informer for each scope that several of them use,
	// whose requests name one of their extensions. Each still has its own states, handles and event
	// handlers, which end with it. A review of one of them that succeeds, and without impersonation a
	// request, postpones the probes of all. If the API server rejects the identity of one, each of the
	// others sends a probe of its own.
	//
	// With [Options].Ownership, the first read of a scope has all that was written before this replica
	// took the extension over, which takes a list of metadata if siblings use the scope already. A
	// connection that calls IndexField shares probes only: use Indexes. AddIndexers of an informer
	// that may be shared returns an error for a field, and does nothing else. DisableObjectSharing,
	// and UnsafeDisableDeepCopy in ByObject, turn identity sharing off.
	DisableIdentitySharing bool
}

// CacheOverrides are options for the cache of one extension's connection.
type CacheOverrides struct {
	// Version names ByObject, because functions cannot be compared: change it whenever ByObject
	// changes. It has at most 253 bytes and no control characters, and is shown in errors and logs.
	// Required if ByObject is not empty.
	Version string
	// ByObject restricts or transforms which objects of a kind are cached, with the meaning that
	// controller-runtime gives to cache.ByObject. What is not set in it is taken from
	// CacheOptions.ByObject; so a Transform replaces that one, and does not run after it, and
	// Namespaces replace those. An empty map of Namespaces, other than nil, means all. A kind has one
	// object here. When another Version has other Namespaces, handlers of a watch of all namespaces
	// receive deletions for those that are gone.
	ByObject map[client.Object]cache.ByObject
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

// ClientOptions configure the clients of every connection. The limits are per identity.
type ClientOptions struct {
	// Timeout bounds each request except watches, and each cached read. Defaults to 10 s.
	Timeout time.Duration
	// QPS and Burst limit the requests of one identity, except probes and access reviews. They
	// default to 20 and 30.
	QPS   float32
	Burst int
	// UserAgent names the host operator to API servers. UserAgent is required. Each connection
	// appends the key of its extension.
	UserAgent string
	// MaxDiscoveryBytes bounds the memory that one discovery of the kinds of an API server takes:
	// the texts of its answers, 500 bytes for each JSON object in them, 2,000 for each group and
	// version, and 40 for each other value. Defaults to 64 MiB, which is enough for about 15,000 kinds
	// of one version each. Where an API server serves more, each group that is asked for is
	// discovered by itself. At least 1 MiB, because core kinds are a group, too.
	MaxDiscoveryBytes int64
	// Cache configures how the client from GetClient reads.
	Cache ClientCacheOptions
}

// ClientCacheOptions configure how the client from GetClient reads.
type ClientCacheOptions struct {
	// DisableFor lists objects whose kinds are always read from the API server.
	DisableFor []client.Object
	// LiveGet makes a Get of an object that the identity may get, but not list and watch, go to the
	// API server. Without LiveGet such a Get is Forbidden. It applies to every Get of the connection's
	// client and cache, but not of a [scopedcache.Handle]; see LiveGet of [scopedcache.Options].
	LiveGet bool
	// ReadYourWrites makes cached reads include what the connection's own clients wrote before. A Get
	// of the object, and a List that would contain it, wait until the informer that answers has that;
	// see [scopedcache.NewClient]. The wait is bounded by the context, by Timeout of [ClientOptions],
	// and by the connection. The error is then a [scopedcache.BehindError]. The option
	// client.DisableReadYourWritesConsistency of a read or a write switches that off for this call.
	// Writes of an earlier connection count, too, unless it was of another ServiceAccount. Writes of
	// another client, for example one from GetRESTConfig, do not. Connections that share informers
	// also wait for each other's writes.
	//
	// With ReadYourWrites, informers begin with a list of the latest version instead of one from the
	// API server's memory. API servers before Kubernetes 1.31 take that from etcd.
	ReadYourWrites bool
}

// MetricsOptions enable Prometheus series in addition to the sums.
type MetricsOptions struct {
	// PerExtension adds series for every extension. The series of an extension end with the
	// extension. The number of series grows with the number of extensions.
	PerExtension bool
}

// connections returns the options in the types of the packages that carry them out.
func (o *CacheOptions) connections(reads ClientCacheOptions) accessor.CacheOptions {
	return accessor.CacheOptions{
		Scopes: scopedcache.Options{
			LiveGet:              reads.LiveGet,
			AccessReviewInterval: o.AccessReviewInterval,
			IdleTimeout:          o.IdleTimeout,
			PollWithoutWatch:     o.PollWithoutWatch,
			MaxNamespaces:        o.MaxNamespaces,
		},
		Informers: cache.Options{
			SyncPeriod:       o.SyncPeriod,
			DefaultTransform: o.DefaultTransform,
			ByObject:         o.ByObject,
		},
		AddIndexes:             addIndexes(o.Indexes),
		DisableObjectSharing:   o.DisableObjectSharing,
		DisableIdentitySharing: o.DisableIdentitySharing,
	}
}

func addIndexes(indexes []CacheOptionsIndex) func(context.Context, client.FieldIndexer) error {
	return func(ctx context.Context, cache client.FieldIndexer) error {
		for _, index := range indexes {
			if err := cache.IndexField(ctx, index.Object, index.Field, index.ExtractValue); err != nil {
				return err
			}
		}
		return nil
	}
}

// connections returns the options in the types of the packages that carry them out.
func (o *ClientOptions) connections() accessor.ClientOptions {
	return accessor.ClientOptions{
		Config:            rest.Config{Timeout: o.Timeout, QPS: o.QPS, Burst: o.Burst, UserAgent: o.UserAgent},
		MaxDiscoveryBytes: o.MaxDiscoveryBytes,
		DisableFor:        o.Cache.DisableFor,
		ReadYourWrites:    o.Cache.ReadYourWrites,
	}
}
