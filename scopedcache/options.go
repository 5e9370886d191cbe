package scopedcache

import (
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Options configure what a scoped cache does beyond controller-runtime's cache. The zero value of
// each field is its default. A negative duration is the default too.
type Options struct {
	// Name is the label cache of the series latchkey_informers and latchkey_objects, which are
	// computed at each collection of controller-runtime's metrics while the cache runs. Caches of one
	// name add up. No series if Name is empty.
	Name string
	// AccessReviewInterval is how often the cache asks the API server whether the identity still
	// has access to what it watches. For scopes that are Forbidden, the cache asks whether access
	// has been granted. The next review comes after 80 to 100 % of the interval. Defaults to 60 s.
	// While changes of RBAC are watched, with WatchRBAC or RBACWatcher, the interval is ten times as
	// long.
	// Each review costs one SelfSubjectAccessReview per informer, outside of the identity's rate
	// limit. A Forbidden scope costs two, and a GET of /readyz for each denial.
	AccessReviewInterval time.Duration
	// IdleTimeout is how long an informer that a read has started runs without another read. The
	// informer stops between one and two times IdleTimeout after the last read. 0 means that the
	// informer does not stop, unless it is of a single name: then ten minutes count.
	IdleTimeout time.Duration
	// ReadTimeout bounds how long a read waits, in addition to its context. Defaults to 30 s.
	ReadTimeout time.Duration
	// WatchRBAC makes the cache watch Roles, ClusterRoles and their bindings with its own identity.
	// When a change concerns that identity, by its name or one of its groups, the cache reviews access
	// again. If the binding is a ClusterRoleBinding, the cache reviews all scopes, otherwise the
	// scopes in the namespace of the binding. While such changes continue, the cache asks less and
	// less often, up to every 30 s, or every AccessReviewInterval if that is shorter. A change that
	// concerns other identities causes no review, once the cache knows its username and groups.
	// WatchRBAC needs the permissions in config/rbac/rbac-events.yaml, in all namespaces. Without them
	// the log reports it, and reviews come every AccessReviewInterval only. With them, the cache also
	// reviews access every ten times AccessReviewInterval. These reviews find permissions that are not
	// in RBAC objects, for example those that a webhook grants. [WhereverAllowed] needs WatchRBAC or
	// RBACWatcher.
	WatchRBAC bool
	// RBACWatcher, if not nil, makes the cache review access again when the watcher reports that
	// permissions may have changed. Many caches can share one RBACWatcher. Their own identities
	// then need no access to RBAC objects.
	RBACWatcher *RBACWatcher
	// NamespaceWatcher, if not nil, sees the labels and the deletion of namespaces for the sets of
	// namespaces of the cache. Many caches can share one NamespaceWatcher. Without one, the cache's
	// own identity lists and watches the namespaces with the labels of [NamespacesWithLabels], and no
	// other set notices that a namespace is deleted.
	NamespaceWatcher *NamespaceWatcher
	// MaxNamespaces is how many namespaces a set of [WhereverAllowed] has at most, where it has one
	// informer for each. Those in which a RoleBinding turns out to permit nothing of the kind do not
	// count. Places are given in the order of the names, and kept. A namespace without permission
	// makes room when the RoleBinding is gone, too. State of the set says how many are left out.
	// Defaults to 100, also if negative. Other sets have no limit.
	MaxNamespaces int
	// PollWithoutWatch makes the cache list periodically if the identity may list but not watch.
	// Reads are then as old as AccessReviewInterval and a pause of client-go, up to a minute.
	// Without PollWithoutWatch such a kind is Forbidden, because an informer would never receive a
	// change.
	PollWithoutWatch bool
	// LiveGet makes a Get of an object that the identity may get, but not list and watch, go to the
	// API server. Such a Get is a request: it counts for the rate limit, takes ReadTimeout at most,
	// and can fail with any error of the API server. Options of the Get have no effect, as with the
	// cache. When the identity may list and watch again, a later Get may return an earlier version
	// once.
	//
	// The API server is asked for permission once for each kind and namespace or, if only some names
	// are permitted, for each name, up to ten a second after the first hundred; beyond that the Get is
	// Forbidden. The answer counts for AccessReviewInterval (the first denial for
	// 2 s), or until a change of RBAC is seen. The cache's own selectors and transforms apply; if a
	// selector has another field than metadata.name and metadata.namespace, the Get is Forbidden.
	// List is Forbidden in any case. A scope for which Gets go to the API server has [StateLive].
	LiveGet bool
	// OnLiveGet is called for each Get that goes to the API server because of LiveGet. Calls come
	// from any goroutine. OnLiveGet must not block. By default, a cache with a Name counts in the
	// series latchkey_live_gets_total.
	OnLiveGet func()
	// PerNamespace makes reads in each namespace use an informer of that namespace, unless there is
	// an informer of all namespaces already. So the cache holds only what is read. By default a
	// read in a namespace uses the informer of all namespaces, as with controller-runtime's cache.
	// If the identity may not list and watch all namespaces, the read uses the informer of its
	// namespace.
	PerNamespace bool
	// Username appears in errors, and decides which changes of RBAC concern this cache. If Username
	// is empty, the cache asks the API server.
	Username string
	// Groups of that user also decide which changes of RBAC concern this cache. Groups are not
	// needed for a ServiceAccount. For another user with empty Groups, the cache asks the API
	// server. Until the API server has answered, every change of RBAC makes the cache review access
	// again.
	Groups []string
	// HideServerMessages makes errors contain only the HTTP status of the API server's answer, and
	// none of its text. Use it for servers whose text is not trusted.
	HideServerMessages bool
	// ObjectPool, if not nil, makes the cache keep objects that equal those of other caches only once.
	// Use one pool for all caches of one API server.
	ObjectPool *ObjectPool
	// UnstreamedKinds, if not nil, is where the cache remembers for which kinds the API server does
	// not finish streamed lists. Use one for all caches of one API server, so that not each of them
	// waits ten seconds for that. By default each cache remembers for itself.
	UnstreamedKinds *UnstreamedKinds
	// ListLimit, if not nil, bounds how many lists of informers are read at a time; see
	// [NewListLimit]. Use one for all caches of one API server. By default each cache reads 20 at a
	// time.
	ListLimit *ListLimit
	// TracerProvider, if not nil, receives OpenTelemetry spans of informers that start and of access
	// reviews, and makes cached reads an event in the caller's span. The provider must not block.
	TracerProvider trace.TracerProvider
	// Logger logs when a scope becomes Forbidden or NotServed, and when the scope is served after
	// that. At verbosity 1 it also logs when a scope fails. Defaults to controller-runtime's
	// logger.
	Logger logr.Logger
	// OnStateChange, if not nil, is called when the state of any scope, or its LastError, changes.
	// before is the last state in which the result of a read was known: Synced, Forbidden or
	// NotServed. before is Syncing if there was none. So before equals now.State when a scope that
	// was Failing is Synced again. Calls come from any goroutine, but one at a time for each scope.
	// OnStateChange must not block, and must not call the cache. A panic in OnStateChange ends the
	// process.
	OnStateChange func(before State, now ScopeState)
	// OnScopesChange, if not nil, is called when anything in States has changed but numbers of
	// objects: a scope began or ended, has another state, or has another holder. Calls come from any
	// goroutine. OnScopesChange must not block, and must not call the cache.
	OnScopesChange func()

	noHints bool // errors do not say how callers could read what the identity may
}

func (o *Options) setDefaults() {
	if o.AccessReviewInterval <= 0 {
		o.AccessReviewInterval = time.Minute
	}
	if o.MaxNamespaces <= 0 {
		o.MaxNamespaces = 100
	}
	if o.ReadTimeout <= 0 {
		o.ReadTimeout = 30 * time.Second
	}
	if o.Logger.GetSink() == nil {
		o.Logger = log.Log.WithName("scopedcache")
	}
}

// New creates a cache, which is a [Cache]: NewWithOptions with the Name "scopedcache" and otherwise
// the defaults. New does what controller-runtime's cache.New does,
// except for the differences that the package documentation lists. New is a cache.NewCacheFunc, so
// a manager can use it:
//
//	ctrl.NewManager(config, ctrl.Options{NewCache: scopedcache.New})
func New(config *rest.Config, opts cache.Options) (cache.Cache, error) {
	return NewWithOptions(Options{Name: "scopedcache"})(config, opts)
}

// NewWithOptions returns a cache.NewCacheFunc that creates caches with these options. Each of them
// is a [Cache].
func NewWithOptions(options Options) cache.NewCacheFunc {
	options.setDefaults()
	return func(config *rest.Config, opts cache.Options) (cache.Cache, error) {
		return newScopedCache(config, opts, options)
	}
}

// withDefaults sets the defaults that controller-runtime sets.
func withDefaults(config *rest.Config, opts cache.Options) (*rest.Config, cache.Options, error) {
	config = rest.CopyConfig(config)
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	if opts.HTTPClient == nil {
		var err error
		if opts.HTTPClient, err = rest.HTTPClientFor(config); err != nil {
			return nil, opts, errors.Wrap(err, "creating an HTTP client")
		}
	}
	if opts.HTTPClient.Timeout > 0 { // a timeout would end watches
		opts.HTTPClient = &http.Client{
			Transport:     opts.HTTPClient.Transport,
			CheckRedirect: opts.HTTPClient.CheckRedirect,
			Jar:           opts.HTTPClient.Jar,
		}
	}
	if opts.Scheme == nil {
		opts.Scheme = scheme.Scheme
	}
	if opts.Mapper == nil {
		var err error
		bounded := *opts.HTTPClient
		bounded.Timeout = discoveryTimeout
		if opts.Mapper, err = apiutil.NewDynamicRESTMapper(config, &bounded); err != nil {
			return nil, opts, errors.Wrap(err, "creating a RESTMapper")
		}
	}
	return config, opts, nil
}
