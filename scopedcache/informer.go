package scopedcache

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/access"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/listwatch"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// informer is one life of a scope's informer: a controller-runtime cache that is restricted to the
// scope and has one informer. When access is revoked, or the kind is removed, this informer ends.
// The next one starts with an empty store.
type informer struct {
	cache   cache.Cache
	shared  cache.Informer
	store   toolscache.Store
	version func() string   // resourceVersion of the store, empty before the first list
	life    context.Context // ends when the informer is stopped
	end     context.CancelFunc

	helpers       sync.WaitGroup  // of registrations; Add only under entry.mu while this informer runs
	indexed       map[string]bool // guarded by entry.mu: the fields that have an index
	indexers      int             // guarded by entry.mu: how many of the scope's indexers are added
	mu            sync.Mutex
	watch         watch.Interface // guarded by mu: the latest watch, nil before the first
	lists         bool            // guarded by mu: watch begins with a streamed list
	listedVersion string          // guarded by mu: the version when watch began
}

// has reports whether the informer has an object with that key.
func (i *informer) has(key string) bool {
	_, found, err := i.store.GetByKey(key)
	return found && err == nil
}

// setWatch records a new watch.
func (i *informer) setWatch(stream watch.Interface, lists bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.watch, i.lists, i.listedVersion = stream, lists, i.version()
}

// streams reports whether the watch is streaming a list.
func (i *informer) streams() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.watch != nil && i.lists && i.version() == i.listedVersion
}

// restartWatch ends the watch. The informer then starts another watch at the same resourceVersion,
// without a list. A watch that still streams its list continues, because a new one would list from
// the beginning.
func (i *informer) restartWatch() {
	i.mu.Lock()
	latest := i.watch
	if i.lists && i.version() == i.listedVersion { // still streams its list
		latest = nil
	}
	i.mu.Unlock()
	if latest != nil {
		latest.Stop()
	}
}

// fixedMapper is a RESTMapper that knows one mapping, so that creating an informer sends no
// request.
type fixedMapper struct {
	meta.RESTMapper
	mapping *meta.RESTMapping
}

func (m fixedMapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if gk != m.mapping.GroupVersionKind.GroupKind() {
		// access to other kinds was not reviewed
		return nil, &meta.NoKindMatchError{GroupKind: gk, SearchedVersions: versions}
	}
	return m.mapping, nil
}

// newInformer creates an informer that does not run yet, and does no I/O.
func (r *run) newInformer(mapping *meta.RESTMapping, poll time.Duration, life monitor.LifeID) (*informer, error) {
	next := &informer{indexed: map[string]bool{}}
	next.life, next.end = context.WithCancel(context.Background())
	namespace, config := r.namespaceIn(mapping), r.configOf(mapping)
	options := r.cache.cacheOptions
	options.ByObject, options.DefaultNamespaces, options.ReaderFailOnMissingInformer = nil, nil, false
	options.Mapper = fixedMapper{options.Mapper, mapping}
	options.DefaultLabelSelector, options.DefaultFieldSelector = config.LabelSelector,
		inNamespace(namespace, config.FieldSelector)
	options.DefaultTransform, options.SyncPeriod = config.Transform, config.SyncPeriod
	options.DefaultUnsafeDisableDeepCopy, options.DefaultEnableWatchBookmarks = config.UnsafeDisableDeepCopy,
		config.EnableWatchBookmarks
	newShared := options.NewInformer
	if newShared == nil {
		newShared = toolscache.NewSharedIndexInformer
	}
	options.NewInformer = func(lw toolscache.ListerWatcher, object runtime.Object, resync time.Duration,
		indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		shared := newShared(&listwatch.ListerWatcher{
			ListerWatcherWithContext: toolscache.ToListerWatcherWithContext(lw),
			Report: func(request monitor.Request, sent time.Time, err error) bool {
				return r.reportAnswer(life, request, sent, err)
			},
			// A DefaultWatchErrorHandler receives every error.
			ReturnAll: r.cache.cacheOptions.DefaultWatchErrorHandler != nil,
			OnWatch:   next.setWatch,
			Poll:      poll,
		}, object, resync, indexers)
		next.store, next.version = shared.GetStore(), shared.LastSyncResourceVersion
		return shared
	}
	options.DefaultWatchErrorHandler = func(ctx context.Context, reflector *toolscache.Reflector, err error) {
		if handler := r.cache.cacheOptions.DefaultWatchErrorHandler; handler != nil {
			handler(ctx, reflector, err)
			return
		}
		if r.cache.life.Err() != nil || next.life.Err() != nil {
			return // errors of an informer that ends are expected
		}
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			// Readers receive this error, and an identity without access is normal. So log no error
			// in the host operator's log.
			klog.FromContext(ctx).V(1).Info("The identity may not list or watch, or the API server does not serve the kind",
				"kind",
				r.kind.gvk, "scope", r.scope.String(), "error", err.Error())
			return
		}
		toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
	}
	var err error
	if next.cache, err = cache.New(r.cache.config, options); err != nil {
		return nil, errors.Wrapf(err, "cache of %s", r.kind.gvk)
	}
	// GetInformer does not block here: the mapping is known and the cache does not run.
	if next.shared,
		err = next.cache.GetInformer(context.Background(), r.kind.example(), cache.BlockUntilSynced(false)); err != nil {
		return nil, errors.Wrapf(err, "informer of %s", r.kind.gvk)
	}
	return next, nil
}

// reportAnswer reports the API server's answer to an informer's request, and returns whether the
// informer must retry the request. listwatch.ListerWatcher calls it.
func (r *run) reportAnswer(life monitor.LifeID, request monitor.Request, sent time.Time, err error) (retry bool) {
	err = displayError(err, r.cache.options.HideServerMessages)
	outcome, retry := monitor.Classify(request, err, access.FromServer(err))
	switch outcome {
	case monitor.OutcomeServed:
		r.mail.reportServed(life)
	case monitor.OutcomeFailed, monitor.OutcomeRefused:
		r.mail.reportError(life, outcome, err, sent)
	}
	return retry
}
