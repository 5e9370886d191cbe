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

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// informer is one life of a scope's informer: a controller-runtime cache that is restricted to the
// scope and has the one informer. When the right is lost, or the kind is gone, the next one starts
// from nothing.
type informer struct {
	cache   cache.Cache
	shared  cache.Informer
	store   toolscache.Store
	version func() string   // of what is in the store, empty before the first list
	life    context.Context // ends when it is stopped
	end     context.CancelFunc

	helpers  sync.WaitGroup  // of the registrations; grows only under entry.mu, while the scope runs this informer
	indexed  map[string]bool // guarded by entry.mu: the fields by which it is indexed
	indexers int             // guarded by entry.mu: how many of the scope's indexers it has
	mu       sync.Mutex
	watch    watch.Interface // guarded by mu: the latest, nil before the first
	lists    bool            // guarded by mu: that watch lists first
	listed   string          // guarded by mu: the version before it
}

// has reports whether the informer has an object of that key.
func (i *informer) has(key string) bool {
	_, found, err := i.store.GetByKey(key)
	return found && err == nil
}

// watches notes a watch that has begun.
func (i *informer) watches(begun watch.Interface, lists bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.watch, i.lists, i.listed = begun, lists, i.version()
}

// streams reports whether a list is being streamed.
func (i *informer) streams() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.watch != nil && i.lists && i.version() == i.listed
}

// restartWatch ends the watch. The informer begins another one where it ended, without a list. One
// that still lists, which would begin from nothing, goes on.
func (i *informer) restartWatch() {
	i.mu.Lock()
	latest := i.watch
	if i.lists && i.version() == i.listed { // it streams
		latest = nil
	}
	i.mu.Unlock()
	if latest != nil {
		latest.Stop()
	}
}

// mapped is a RESTMapper that knows one mapping already, so that making an informer asks nobody.
type mapped struct {
	meta.RESTMapper
	mapping *meta.RESTMapping
}

func (m mapped) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if gk != m.mapping.GroupVersionKind.GroupKind() {
		// nobody asked whether that is allowed
		return nil, &meta.NoKindMatchError{GroupKind: gk, SearchedVersions: versions}
	}
	return m.mapping, nil
}

// newInformer makes an informer that does not run yet. It does no I/O.
func (r *run) newInformer(mapping *meta.RESTMapping, poll time.Duration, life monitor.LifeID) (*informer, error) {
	next := &informer{indexed: map[string]bool{}}
	next.life, next.end = context.WithCancel(context.Background())
	namespace, config := r.namespaceIn(mapping), r.configOf(mapping)
	options := r.cache.cacheOptions
	options.ByObject, options.DefaultNamespaces, options.ReaderFailOnMissingInformer = nil, nil, false
	options.Mapper = mapped{options.Mapper, mapping}
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
		shared := newShared(&listerWatcher{
			ListerWatcherWithContext: toolscache.ToListerWatcherWithContext(lw),
			answered: func(what monitor.Request, sent time.Time, err error) bool {
				return r.answered(life, what, sent, err)
			},
			tellAll: r.cache.cacheOptions.DefaultWatchErrorHandler != nil, // whoever set it wants to know
			began:   next.watches,
			poll:    poll,
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
			return // the informer ends, and what breaks then is no error
		}
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			// Readers are told, and an identity without a right is nothing unusual: no error in the
			// host's log.
			klog.FromContext(ctx).V(1).Info("The identity may not list or watch, or there is no such kind", "kind",
				r.kind.gvk, "scope", r.scope.String(), "error", err.Error())
			return
		}
		toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
	}
	var err error
	if next.cache, err = cache.New(r.cache.config, options); err != nil {
		return nil, errors.Wrapf(err, "cache of %s", r.kind.gvk)
	}
	// This does not block: the mapping is known and the cache does not run.
	if next.shared,
		err = next.cache.GetInformer(context.Background(), r.kind.example(), cache.BlockUntilSynced(false)); err != nil {
		return nil, errors.Wrapf(err, "informer of %s", r.kind.gvk)
	}
	return next, nil
}

// answered reports what the API server answered to an informer, and returns whether the informer is
// to send the request again. The informer calls it.
func (r *run) answered(life monitor.LifeID, what monitor.Request, sent time.Time, err error) (retry bool) {
	err = r.cache.shown(err)
	outcome, retry := monitor.Classify(what, err, fromServer(err))
	switch outcome {
	case monitor.OutcomeServed:
		r.mail.reportServed(life)
	case monitor.OutcomeFailed, monitor.OutcomeRefused:
		r.mail.reportError(life, outcome, err, sent)
	}
	return retry
}
