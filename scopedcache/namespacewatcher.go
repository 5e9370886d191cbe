package scopedcache

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

var namespaceKind = corev1.SchemeGroupVersion.WithKind("Namespace")

// NamespaceWatcher tells caches which namespaces there are, and which labels they have. One
// identity watches the namespaces' metadata for all caches that use the NamespaceWatcher, from the
// first set of namespaces on, of any kind, until Start ends; before that it sends no request. Its
// access is reviewed repeatedly, like all access of a cache. If it may not watch namespaces, the
// log reports it, and sets of labels are Failing; caches do not use their own identity instead.
// Before Start, sets of labels are Syncing, and their reads wait. Methods may be called from any
// goroutine.
type NamespaceWatcher struct {
	cache  *scopedCache
	logger logr.Logger
	view   *namespaceView
	begin  func() error
}

// NewNamespaceWatcher creates a NamespaceWatcher, which Start runs. Add it to a manager, and set
// Options.NamespaceWatcher of any number of caches of the same cluster to it. config is for the
// identity that watches, which needs the permissions in config/rbac/namespaces.yaml once a set of
// namespaces is used. NewNamespaceWatcher uses HTTPClient and Mapper of opts. Of options it uses
// AccessReviewInterval, ReadTimeout, Username, HideServerMessages and Logger. NewNamespaceWatcher
// does no I/O.
func NewNamespaceWatcher(config *rest.Config, opts cache.Options, options Options) (*NamespaceWatcher, error) {
	options.setDefaults()
	w := &NamespaceWatcher{logger: options.Logger, view: newNamespaceView(func(error) error { return errNotOurs })}
	var err error
	w.cache, err = newScopedCache(config,
		cache.Options{
			HTTPClient:       opts.HTTPClient,
			Scheme:           scheme.Scheme,
			Mapper:           opts.Mapper,
			DefaultTransform: onlyLabels,
		},
		Options{
			AccessReviewInterval: options.AccessReviewInterval,
			ReadTimeout:          options.ReadTimeout,
			Username:             options.Username,
			HideServerMessages:   options.HideServerMessages,
			Logger:               options.Logger.WithValues("for", "namespaces").V(1),
			noHints:              true,
			OnStateChange:        w.observe,
		})
	if err != nil {
		return nil, err
	}
	w.begin = sync.OnceValue(func() error {
		_, err := w.view.begin(w.cache, Scope{}, "namespaces")
		return err
	})
	return w, nil
}

// Start watches until ctx is done, and returns when the watch has ended. Call Start once.
func (w *NamespaceWatcher) Start(ctx context.Context) error { return w.cache.Start(ctx) }

// NeedLeaderElection makes managers start the watcher on every replica.
func (w *NamespaceWatcher) NeedLeaderElection() bool { return false }

// observe logs that namespaces cannot be watched.
func (w *NamespaceWatcher) observe(before State, now ScopeState) {
	if now.State == before || now.State != StateForbidden {
		return
	}
	w.logger.Info("Cannot watch namespaces, so no set of namespaces follows their labels or their deletion; "+
		"config/rbac/namespaces.yaml has the missing permissions", "error", untrusted.Shorten(now.LastError.Error()))
}

// follow begins to watch, if nothing has yet.
func (w *NamespaceWatcher) follow() (*namespaceView, error) { return w.view, w.begin() }

// has reports whether a namespace exists. known is false if that is not known.
func (w *NamespaceWatcher) has(name string) (exists, known bool) { return w.view.has(name) }

// version returns a resource version: has knows all that had happened at it.
func (w *NamespaceWatcher) version() string {
	w.view.mu.Lock()
	e := w.view.of.entry
	w.view.mu.Unlock()
	if e == nil {
		return ""
	}
	e.mu.Lock()
	running := e.running
	e.mu.Unlock()
	return running.version()
}

// onlyLabels removes what nothing reads.
func onlyLabels(object any) (any, error) {
	if o, ok := object.(client.Object); ok {
		o.SetManagedFields(nil)
		o.SetAnnotations(nil)
	}
	return object, nil
}
