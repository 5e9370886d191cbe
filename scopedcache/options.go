package scopedcache

import (
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Options are what a scoped cache can do beyond controller-runtime's. The zero value of each field
// is its default, and so are negative durations.
type Options struct {
	// AccessReviewInterval is how often the API server is asked whether the identity may still
	// watch what is watched, and whether it may now what it might not. Each question comes 80 to
	// 100 % of it after the one before. Defaults to 60 s. It costs a SelfSubjectAccessReview for
	// each informer, outside of the identity's rate limit; for what is forbidden it is two, and a
	// GET of /readyz for each that is denied.
	AccessReviewInterval time.Duration
	// IdleTimeout is how long an informer that was started by a read goes on without another one.
	// It is never stopped earlier than that, nor later than twice as long. 0 keeps it.
	IdleTimeout time.Duration
	// ReadTimeout bounds a read that waits, beside its context. Defaults to 30 s.
	ReadTimeout time.Duration
	// WatchRBAC has the cache watch Roles, ClusterRoles and their bindings with its own identity,
	// and ask again about rights when a change concerns that identity, by its name or one of its
	// groups: about all if the binding is a ClusterRoleBinding, else about those in that namespace.
	// While such changes go on it asks less and less often, up to every 30 s; a change that
	// concerns others makes it ask nothing, once it knows its username and groups.
	// config/rbac/rbac-events.yaml is the right that it takes, in all namespaces; without it the
	// log says so, and AccessReviewInterval it is. Either way AccessReviewInterval goes on.
	WatchRBAC bool
	// RBACWatcher, if not nil, have the cache ask again when they tell that rights may have
	// changed. Many caches can share one RBACWatcher; their own identities then need no right on
	// RBAC.
	RBACWatcher *RBACWatcher
	// PollWithoutWatch: where the identity may list and not watch, list instead of watching. Reads
	// are as old as AccessReviewInterval and a pause of client-go's, up to a minute. Without it
	// such a kind is Forbidden, for an informer would never learn of a change.
	PollWithoutWatch bool
	// PerNamespace has every namespace that is read use an informer of its own, unless there is one
	// of all namespaces already: nothing is cached but what is read. By default a read in a
	// namespace uses the informer of all namespaces where the identity may have one, as with
	// controller-runtime's cache, and that of the namespace where it may not.
	PerNamespace bool
	// Username is named in errors, and decides which changes of RBAC concern this cache. If it is
	// empty the cache asks the API server.
	Username string
	// Groups of that user decide the same. They are not needed for a ServiceAccount. For another
	// user, if they are empty, the cache asks the API server; until there is an answer every change
	// of RBAC makes it ask about its rights again.
	Groups []string
	// HideServerMessages has errors show the status of what the API server answers, and none of its
	// words: for servers that are not trusted with them.
	HideServerMessages bool
	// Logger is told when a scope becomes Forbidden or NotServed, and when it is served after that;
	// at verbosity 1 also when it fails. Defaults to controller-runtime's.
	Logger logr.Logger
	// Observe, if not nil, is told when the state of any scope, or its LastError, changes, from any
	// goroutine, but of one scope one after the other. before is what reads got when that was last
	// known: Synced, Forbidden, NotServed, or Syncing if it never was; so it equals now.State when
	// a scope that was Failing is Synced again. It must not block, nor call the cache; a panic ends
	// the process.
	Observe func(before State, now ScopeState)
}

func (o *Options) setDefaults() {
	if o.AccessReviewInterval <= 0 {
		o.AccessReviewInterval = time.Minute
	}
	if o.ReadTimeout <= 0 {
		o.ReadTimeout = 30 * time.Second
	}
	if o.Logger.GetSink() == nil {
		o.Logger = log.Log.WithName("scopedcache")
	}
}

// New makes a cache, which is a [Cache]. It is a cache.NewCacheFunc and does what
// controller-runtime's cache.New does, but for what doc.go lists; so it can be given to a manager:
//
//	ctrl.NewManager(config, ctrl.Options{NewCache: scopedcache.New})
func New(config *rest.Config, opts cache.Options) (cache.Cache, error) {
	return NewWithOptions(Options{})(config, opts)
}

// NewWithOptions returns a cache.NewCacheFunc whose caches are as options say. Each is a [Cache].
func NewWithOptions(options Options) cache.NewCacheFunc {
	options.setDefaults()
	return func(config *rest.Config, opts cache.Options) (cache.Cache, error) {
		return newScopedCache(config, opts, options)
	}
}

// withDefaults fills in what controller-runtime fills in.
func withDefaults(config *rest.Config, opts cache.Options) (*rest.Config, cache.Options, error) {
	config = rest.CopyConfig(config)
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	if opts.HTTPClient == nil {
		var err error
		if opts.HTTPClient, err = rest.HTTPClientFor(config); err != nil {
			return nil, opts, errors.Wrap(err, "making an HTTP client")
		}
	}
	if opts.HTTPClient.Timeout > 0 { // it would end watches
		opts.HTTPClient = &http.Client{Transport: opts.HTTPClient.Transport, CheckRedirect: opts.HTTPClient.CheckRedirect,
			Jar: opts.HTTPClient.Jar}
	}
	if opts.Scheme == nil {
		opts.Scheme = scheme.Scheme
	}
	if opts.Mapper == nil {
		var err error
		bounded := *opts.HTTPClient
		bounded.Timeout = discoveryTimeout
		if opts.Mapper, err = apiutil.NewDynamicRESTMapper(config, &bounded); err != nil {
			return nil, opts, errors.Wrap(err, "making a RESTMapper")
		}
	}
	return config, opts, nil
}
