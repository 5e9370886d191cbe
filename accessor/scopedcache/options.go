package scopedcache

import (
	"net/http"
	"time"

	"github.com/pkg/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Options are what a scoped cache can do beyond controller-runtime's. The zero value of each field is its default.
type Options struct {
	// CheckInterval is how often the API server is asked whether the identity may still watch what is watched, and whether
	// it may now what it might not, with a fifth of jitter. Defaults to 60 s.
	CheckInterval time.Duration
	// IdleTimeout is how long an informer that was started by a read goes on without another one. It is never stopped
	// earlier than that, nor later than twice as long. 0 keeps it.
	IdleTimeout time.Duration
	// ReadTimeout bounds a read that waits, beside its context. Defaults to 30 s.
	ReadTimeout time.Duration
	// WatchRBAC has the cache watch Roles, ClusterRoles and their bindings with its own identity, and ask again about
	// rights when they change. If the identity may not, it is as without.
	WatchRBAC bool
	// RBACEvents, if not nil, has the cache ask again when they tell that rights may have changed. Many caches can share
	// one, whose identity may watch RBAC while theirs may not.
	RBACEvents *RBACEvents
	// AllowListOnly has what may be listed and not watched listed every CheckInterval. Without it both rights are needed,
	// for otherwise an informer would never learn of a change.
	AllowListOnly bool
	// PreferAllNamespaces has reads in a namespace use the informer of all namespaces where the identity may have one, as
	// controller-runtime's cache does; otherwise, and where it may not, each namespace that is read has an informer.
	PreferAllNamespaces bool
	// Username is whom errors name. Empty means to ask the API server when it is needed.
	Username string
	// Observe, if not nil, is told when the state of any scope changes, from any goroutine, but of one scope one after the
	// other. before is what reads got when that was last known: Synced, Forbidden, NotServed, or Syncing if it never was.
	// It must not block, nor call the cache.
	Observe func(before State, now ScopeState)
}

func (o *Options) setDefaults() {
	if o.CheckInterval <= 0 {
		o.CheckInterval = time.Minute
	}
	if o.ReadTimeout <= 0 {
		o.ReadTimeout = 30 * time.Second
	}
}

// New makes a cache, which is a [Cache]. It is a cache.NewCacheFunc and does what controller-runtime's cache.New does,
// but for what doc.go lists; so it can be given to a manager:
//
//	ctrl.NewManager(config, ctrl.Options{NewCache: scopedcache.New})
func New(config *rest.Config, opts cache.Options) (cache.Cache, error) {
	return NewWithOptions(Options{PreferAllNamespaces: true})(config, opts)
}

// NewWithOptions returns a cache.NewCacheFunc whose caches are as options say. Each is a [Cache].
func NewWithOptions(options Options) cache.NewCacheFunc {
	options.setDefaults()
	return func(config *rest.Config, opts cache.Options) (cache.Cache, error) {
		return newScoped(config, opts, options)
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
		opts.HTTPClient = &http.Client{Transport: opts.HTTPClient.Transport, CheckRedirect: opts.HTTPClient.CheckRedirect, Jar: opts.HTTPClient.Jar}
	}
	if opts.Scheme == nil {
		opts.Scheme = scheme.Scheme
	}
	if opts.Mapper == nil {
		var err error
		if opts.Mapper, err = apiutil.NewDynamicRESTMapper(config, opts.HTTPClient); err != nil {
			return nil, opts, errors.Wrap(err, "making a RESTMapper")
		}
	}
	return config, opts, nil
}
