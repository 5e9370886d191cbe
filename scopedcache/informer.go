package scopedcache

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/term"
	"github.com/latchkey-dev/latchkey/internal/tracing"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/access"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/lightinformer"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/listwatch"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// informer is one life of a scope's informer. When access is revoked, or the kind is removed, this
// informer ends. The next one starts with an empty store.
type informer struct {
	lightinformer.Reader
	entry  *entry
	shared toolscache.SharedIndexInformer
	life   context.Context // ends when the informer is stopped
	end    context.CancelFunc

	helpers    sync.WaitGroup  // of registrations; Add only under entry.mu while this informer runs
	indexed    map[string]bool // guarded by entry.mu: the fields that have an index
	indexers   int             // guarded by entry.mu: how many of the scope's indexers are added
	mapping    *meta.RESTMapping
	resource   listwatch.Resource // what is listed and watched
	config     cache.Config       // the cache's options for the scope, with the scope's selectors
	since      atomic.Uint64      // see ownwrites.Informer
	id         uint64             // that no other informer has
	consistent bool               // whether the first list is
	asOf       atomic.Uint64      // it has all that was written before so many terms had begun
	catchesUp  atomic.Bool        // it is being made fresh for others
	notListed  error              // guarded by entry.mu: why it could not be made fresh
	// failedLists are the pauses after more lists that fail, for who has set catchesUp.
	failedLists wait.Backoff
	polls       bool // lists instead of watching
	mu          sync.Mutex
	watch       watch.Interface        // guarded by mu: the latest watch, nil before the first
	listing     bool                   // guarded by mu: the latest watch streams a list that has not ended
	turn        atomic.Pointer[func()] // ends the turn of the latest list; nil after that
	waits       atomic.Bool            // for the turn of a list
}

// latestInformer is the id of the latest informer of the process.
var latestInformer atomic.Uint64

// has reports whether the informer has an object with that key.
func (i *informer) has(key string) bool {
	_, found, err := i.Indexer.GetByKey(key)
	return found && err == nil
}

// objects returns the number of objects.
func (i *informer) objects() int {
	if counting, ok := i.shared.(interface{ Objects() int }); ok {
		return counting.Objects()
	}
	return len(i.Indexer.ListKeys()) // an informer of cache.Options.NewInformer
}

// note records in the caller's span that the informer answers a read.
func (i *informer) note(ctx context.Context) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent(tracing.CachedRead, trace.WithAttributes(
			tracing.Kind.String(i.GVK.String()),
			tracing.Scope.String(i.entry.selection.scope.String()),
		))
	}
}

// takeTurn waits for the turn of a list.
func (i *informer) takeTurn(ctx context.Context, lists *ListLimit, begins bool) (release func(), err error) {
	i.waits.Store(true)
	defer i.waits.Store(false)
	if release, err = lists.acquire(ctx, i.mapping.Resource); err == nil {
		i.turn.Store(&release)
	}
	if begins && !i.shared.HasSynced() {
		i.willList()
	}
	return release, err
}

// willList records which writes the first list will have, if it is consistent. It may be sent again
// before it succeeds.
func (i *informer) willList() {
	if i.consistent {
		i.asOf.Store(term.Latest())
		i.since.Store(i.entry.env.writes.Now())
	}
}

// endTurn ends the turn of the latest list, which has been read or has failed.
func (i *informer) endTurn() {
	if release := i.turn.Swap(nil); release != nil {
		(*release)()
	}
}

// setWatch records a new watch.
func (i *informer) setWatch(stream watch.Interface) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.watch = stream
}

// setListing records whether the latest watch streams a list that has not ended.
func (i *informer) setListing(listing bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.listing = listing
}

// streams reports whether the watch is streaming a list.
func (i *informer) streams() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.listing
}

// restartWatch ends the watch. The informer then starts another watch at the same resourceVersion,
// without a list. A watch that still streams its list continues, because a new one would list from
// the beginning.
func (i *informer) restartWatch() {
	i.mu.Lock()
	latest, listing := i.watch, i.listing
	i.mu.Unlock()
	if latest != nil && !listing {
		latest.Stop()
	}
}

// stopWatch ends the watch.
func (i *informer) stopWatch() {
	i.mu.Lock()
	latest := i.watch
	i.mu.Unlock()
	if latest != nil {
		latest.Stop()
	}
}

// watchObserver reports how the watches of an informer go.
type watchObserver struct {
	run      *run
	informer *informer
	life     monitor.LifeID
}

func (o watchObserver) WatchBegan(lists bool) {
	o.informer.setListing(lists)
	o.run.entry.mail.reportWatch(o.life, monitor.WatchBegan{Life: o.life, Lists: lists})
}

func (o watchObserver) WatchListed() {
	o.informer.endTurn()
	o.informer.setListing(false)
	o.run.entry.mail.reportWatch(o.life, monitor.WatchListed{Life: o.life})
}

func (o watchObserver) WatchEnded(lasted time.Duration, early, stopped bool, err error) {
	o.informer.endTurn()
	o.informer.setListing(false)
	hide := o.run.entry.env.options.HideServerMessages
	if _, isStatus := untrusted.StatusText(err); err != nil && hide && !isStatus {
		err = errUnreadable
	}
	o.run.entry.mail.reportWatch(o.life, monitor.WatchEnded{
		Life:    o.life,
		Lasted:  lasted,
		Early:   early,
		Stopped: stopped,
		Err:     displayError(err, hide),
	})
}

// errUnreadable stands for an error that quotes what a server sent.
var errUnreadable = errors.New("the API server's answer could not be read")

// newInformer creates an informer that does not run yet, and does no I/O.
func (r *run) newInformer(mapping *meta.RESTMapping, poll time.Duration, life monitor.LifeID) (*informer, error) {
	next := &informer{
		entry:       r.entry,
		mapping:     mapping,
		id:          latestInformer.Add(1),
		polls:       poll > 0,
		failedLists: afterFailedList,
		consistent:  r.entry.env.writes.Enabled() || r.entry.env.fresh.Load() || r.entry.ofSet.Load(),
	}
	next.life, next.end = context.WithCancel(context.Background())
	config, example := r.entry.selection.configOf(mapping), r.entry.selection.kind.example
	resource := listwatch.Resource{
		Mapping:   mapping,
		Example:   example,
		Namespace: r.entry.selection.namespaceIn(mapping),
		Bookmarks: ptr.Deref(config.EnableWatchBookmarks, true),
		Observer:  watchObserver{run: r, informer: next, life: life},
	}
	if config.LabelSelector != nil {
		resource.Labels = config.LabelSelector.String()
	}
	if selector := inNamespace(resource.Namespace, config.FieldSelector); selector != nil {
		resource.Fields = selector.String()
	}
	next.resource, next.config = resource, config
	requests, err := r.entry.env.clients.For(resource)
	if err != nil {
		return nil, err
	}
	newShared, indexers := r.entry.env.informers.NewInformer, toolscache.Indexers{}
	if newShared == nil {
		newShared = newLightInformer
		next.Namespace = resource.Namespace
	} else {
		example = example.DeepCopyObject().(client.Object) // ours is that of all caches
	}
	if next.Namespace == "" {
		indexers[toolscache.NamespaceIndex] = toolscache.MetaNamespaceIndexFunc
	}
	next.shared = newShared(&listwatch.ListerWatcher{
		ListerWatcherWithContext: requests,
		Report: func(request monitor.Request, sent time.Time, err error) bool {
			return r.reportAnswer(life, request, sent, err)
		},
		// A DefaultWatchErrorHandler receives every error.
		ReturnAll: r.entry.env.informers.DefaultWatchErrorHandler != nil,
		OnWatch:   next.setWatch,
		Turn: func(ctx context.Context, begins bool) (func(), error) {
			return next.takeTurn(ctx, r.entry.env.lists, begins)
		},
		Unstreams: func() bool { return r.entry.env.unstreamed.has(mapping.Resource) },
		Poll:      poll,
		// A list from memory may be older than a write, and an informer counts as having what was written
		// before its first list. It may also be older than what a handler has received from another one.
		Consistent: next.consistent,
	}, example, resyncPeriod(config.SyncPeriod), indexers)
	if err := next.shared.SetTransform(transformOf(r.entry.selection.kind, config.Transform)); err != nil {
		return nil, errors.Wrapf(err, "informer of %s", r.entry.selection.kind.gvk)
	}
	if err := next.shared.SetWatchErrorHandlerWithContext(r.handleError(next)); err != nil {
		return nil, errors.Wrapf(err, "informer of %s", r.entry.selection.kind.gvk)
	}
	next.Indexer, next.GVK = next.shared.GetIndexer(), r.entry.selection.kind.gvk
	next.Namespaced = mapping.Scope.Name() == meta.RESTScopeNameNamespace
	next.DisableDeepCopy = ptr.Deref(config.UnsafeDisableDeepCopy, false)
	if light, ok := next.shared.(*lightinformer.Informer); ok && r.entry.env.options.ObjectPool != nil &&
		!next.DisableDeepCopy {
		light.ShareObjects(&r.entry.env.options.ObjectPool.objects)
		next.AlwaysCopy = true
	}
	return next, nil
}

// newLightInformer creates an informer, unless the cache's options have a NewInformer.
func newLightInformer(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration,
	indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return lightinformer.New(lw, example, resync, indexers)
}

// resyncPeriod returns the period of resyncs, with the default and the jitter of
// controller-runtime.
func resyncPeriod(configured *time.Duration) time.Duration {
	return time.Duration(float64(ptr.Deref(configured, 10*time.Hour)) * (0.9 + 0.2*rand.Float64()))
}

// transformOf returns what changes the objects of a kind before they are stored, nil for nothing.
func transformOf(k *kind, transform toolscache.TransformFunc) toolscache.TransformFunc {
	if k.representation != RepresentationMetadata {
		return transform
	}
	return func(object any) (any, error) {
		if metadata, ok := object.(*metav1.PartialObjectMetadata); ok {
			metadata.SetGroupVersionKind(k.gvk) // the API server sends the kind of the representation
		}
		if transform == nil {
			return object, nil
		}
		return transform(object)
	}
}

// handleError returns what handles the errors of an informer that its Reflector returns.
func (r *run) handleError(i *informer) toolscache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, reflector *toolscache.Reflector, err error) {
		if handler := r.entry.env.informers.DefaultWatchErrorHandler; handler != nil {
			handler(ctx, reflector, err)
			return
		}
		if r.entry.entries.life.Err() != nil || i.life.Err() != nil {
			return // errors of an informer that ends are expected
		}
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			// Readers receive this error, and an identity without access is normal. So log no error
			// in the host operator's log.
			klog.FromContext(ctx).V(1).Info("The identity may not list or watch, or the API server does not serve the kind",
				"kind", r.entry.selection.kind.gvk, "scope", r.entry.selection.scope.String(), "error",
				untrusted.Shorten(err.Error()))
			return
		}
		toolscache.DefaultWatchErrorHandler(ctx, reflector, untrusted.Error(err))
	}
}

// reportAnswer reports the API server's answer to an informer's request, and returns whether the
// informer must retry the request. listwatch.ListerWatcher calls it.
func (r *run) reportAnswer(life monitor.LifeID, request monitor.Request, sent time.Time, err error) (retry bool) {
	err = displayError(err, r.entry.env.options.HideServerMessages)
	outcome, retry := monitor.Classify(request, err, access.FromServer(err))
	switch outcome {
	case monitor.OutcomeServed:
		r.entry.mail.reportServed(life)
	case monitor.OutcomeFailed, monitor.OutcomeRefused:
		r.entry.mail.reportError(life, outcome, err, sent)
	}
	return retry
}
