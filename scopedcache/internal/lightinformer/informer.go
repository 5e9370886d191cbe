package lightinformer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/latchkey-dev/latchkey/internal/latch"
	"github.com/latchkey-dev/latchkey/internal/versions"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/objectpool"
)

// errStarted is the error of calls that must come before RunWithContext.
var errStarted = errors.New("the informer has already started")

// The delays between two calls of ListAndWatch, which are client-go's: up to a minute with jitter.
var retries = wait.Backoff{Duration: 800 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 38, Cap: 30 * time.Second}

// resetRetries is how long an informer lists and watches without an error before the next delay is
// short again.
const resetRetries = 2 * time.Minute

// Informer is a toolscache.SharedIndexInformer. Handlers receive what client-go's informer would
// give them, with two exceptions: a handler that is removed receives nothing that is still in its
// queue, and the store has the whole result of a list at once. Methods may be called from any
// goroutine.
type Informer struct {
	indexer       toolscache.Indexer
	objects       atomic.Int64 // in indexer
	listerWatcher toolscache.ListerWatcher
	example       runtime.Object
	resync        time.Duration    // of handlers without a period of their own
	pool          *objectpool.Pool // nil for none; set before the start
	mutations     toolscache.MutationDetector

	reflector atomic.Pointer[toolscache.Reflector] // nil before the start
	synced    latch.Latch                          // opened under mu
	handling  sync.WaitGroup                       // goroutines of listeners; Add only under mu, before stopped

	// mu is locked for each change of the store, until all handlers have it in their queues. So each
	// handler receives each change once.
	mu                sync.Mutex
	started, stopped  bool                                    // guarded by mu
	transform         toolscache.TransformFunc                // guarded by mu until started
	watchErrorHandler toolscache.WatchErrorHandlerWithContext // guarded by mu until started
	resyncCheck       time.Duration                           // guarded by mu; 0 for no resyncs
	listeners         []*listener                             // guarded by mu
	reached           string                                  // guarded by mu; see Reaches
}

var _ toolscache.SharedIndexInformer = &Informer{}

// New returns an informer that does not run yet. Its parameters are those of
// toolscache.NewSharedIndexInformer.
func New(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration,
	indexers toolscache.Indexers) *Informer {
	return &Informer{
		indexer:       toolscache.NewIndexer(toolscache.DeletionHandlingMetaNamespaceKeyFunc, indexers),
		listerWatcher: lw,
		example:       example,
		resync:        resync,
		resyncCheck:   resync,
		mutations:     toolscache.NewCacheMutationDetector(fmt.Sprintf("%T", example)),
	}
}

// Run is RunWithContext with a channel.
func (i *Informer) Run(stop <-chan struct{}) { i.RunWithContext(wait.ContextForChannel(stop)) }

// RunWithContext lists and watches until ctx is done. It returns when all calls of handlers have
// returned; notifications that are still in queues are dropped.
func (i *Informer) RunWithContext(ctx context.Context) {
	r := i.newReflector(ctx)
	if r == nil {
		return
	}
	for ctx.Err() == nil {
		r.listAndWatch(ctx)
		r.wait(ctx)
	}
	r.end() // not deferred: a panic must not wait for handlers
}

// reflector is client-go's Reflector with what its RunWithContext needs. That has no setter for the
// handler of errors, and more frames on the stack.
type reflector struct {
	*toolscache.Reflector
	informer *Informer
	store    *store
	onError  toolscache.WatchErrorHandlerWithContext
	pause    wait.DelayFunc // created when it is first needed, because most watches go on for long
}

// newReflector returns nil if the informer runs already.
func (i *Informer) newReflector(ctx context.Context) *reflector {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.started {
		klog.FromContext(ctx).Info("Warning: the informer runs already, and cannot run twice", "type",
			fmt.Sprintf("%T", i.example))
		return nil
	}
	r := &reflector{informer: i, store: &store{Informer: i}, onError: i.watchErrorHandler}
	r.Reflector = toolscache.NewReflectorWithOptions(i.listerWatcher, i.example, r.store, toolscache.ReflectorOptions{
		Name:         "scopedcache",
		ResyncPeriod: i.resyncCheck,
	})
	r.ShouldResync = i.shouldResync
	if r.onError == nil {
		r.onError = toolscache.DefaultWatchErrorHandler
	}
	i.started = true
	i.reflector.Store(r.Reflector)
	i.handling.Go(func() { i.mutations.Run(ctx.Done()) }) // returns at once unless client-go's detector is enabled
	return r
}

// listAndWatch lists and watches until the watch fails. A panic, for example of a transform, ends
// the process, unless utilruntime.ReallyCrash says otherwise.
func (r *reflector) listAndWatch(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	if err := r.ListAndWatchWithContext(ctx); err != nil {
		r.onError(ctx, r.Reflector, err)
	}
}

// wait waits until the next list, as long as client-go does.
func (r *reflector) wait(ctx context.Context) {
	if r.pause == nil {
		r.pause = retries.DelayWithReset(clock.RealClock{}, resetRetries)
	}
	select {
	case <-ctx.Done():
	case <-time.After(r.pause()):
	}
}

// end ends the handlers, and waits for their calls.
func (r *reflector) end() {
	i := r.informer
	i.mu.Lock()
	i.stopped = true
	for _, l := range i.listeners {
		l.end()
	}
	i.listeners = nil
	r.store.releaseAll()
	i.mu.Unlock()
	i.handling.Wait()
}

// shouldResync reports whether a handler is due for a resync. The Reflector then calls Resync of
// the store.
func (i *Informer) shouldResync() bool {
	now := time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	due := false
	for _, l := range i.listeners {
		l.resyncing = l.period > 0 && !now.Before(l.nextResync)
		if l.resyncing {
			due = true
			l.nextResync = now.Add(l.period)
		}
	}
	return due
}

// Reaches reports whether the informer has all changes up to a list of what it selects, so that the
// store never goes back behind it. The watch may send changes before the list's version after that,
// of objects that were created and deleted again; these are left out.
func (i *Informer) Reaches(list *versions.Snapshot) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	version := i.LastSyncResourceVersion()
	if !i.HasSynced() || !list.ReachedBy(version, i.Objects()) {
		return false
	}
	if !versions.Reached(version, list.Version) {
		i.reached = versions.Later(list.Version, i.reached)
	}
	return true
}

// isPastLocked reports whether a change or a list of that version tells less than a list that the
// informer has reached. The caller holds mu.
func (i *Informer) isPastLocked(version string) bool {
	if i.reached == "" {
		return false
	}
	if versions.IsAfter(version, i.reached) {
		i.reached = ""
	}
	return i.reached != "" && (version == i.reached || versions.IsAfter(i.reached, version))
}

// Objects returns the number of objects in the store.
func (i *Informer) Objects() int { return int(i.objects.Load()) }

// HasSynced reports whether the store has had the result of a list.
func (i *Informer) HasSynced() bool { return i.synced.IsOpen() }

// HasSyncedChecker implements toolscache.SharedInformer.
func (i *Informer) HasSyncedChecker() toolscache.DoneChecker {
	return checker{name: fmt.Sprintf("informer of %T", i.example), done: &i.synced}
}

// checker is a DoneChecker for a latch.
type checker struct {
	name string
	done *latch.Latch
}

func (c checker) Name() string          { return c.name }
func (c checker) Done() <-chan struct{} { return c.done.Done() }

// LastSyncResourceVersion implements toolscache.SharedInformer.
func (i *Informer) LastSyncResourceVersion() string {
	if reflector := i.reflector.Load(); reflector != nil {
		return reflector.LastSyncResourceVersion()
	}
	return ""
}

// GetStore implements toolscache.SharedInformer.
func (i *Informer) GetStore() toolscache.Store { return i.indexer }

// GetIndexer implements toolscache.SharedIndexInformer.
func (i *Informer) GetIndexer() toolscache.Indexer { return i.indexer }

// GetController implements toolscache.SharedInformer.
func (i *Informer) GetController() toolscache.Controller { return i }

// AddIndexers implements toolscache.SharedIndexInformer.
func (i *Informer) AddIndexers(indexers toolscache.Indexers) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stopped {
		return errors.New("the informer has stopped, so no indexer can be added")
	}
	return i.indexer.AddIndexers(indexers)
}

// IsStopped implements toolscache.SharedInformer.
func (i *Informer) IsStopped() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.stopped
}

// SetTransform implements toolscache.SharedInformer.
func (i *Informer) SetTransform(transform toolscache.TransformFunc) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.started {
		return errStarted
	}
	i.transform = transform
	return nil
}

// ShareObjects makes the informer keep equal objects once with all other informers of the pool.
// Call it before RunWithContext. Handlers and readers must not change the objects that they
// receive.
func (i *Informer) ShareObjects(pool *objectpool.Pool) { i.pool = pool }

// SetWatchErrorHandler implements toolscache.SharedInformer.
func (i *Informer) SetWatchErrorHandler(handler toolscache.WatchErrorHandler) error {
	return i.SetWatchErrorHandlerWithContext(func(_ context.Context, reflector *toolscache.Reflector, err error) {
		handler(reflector, err)
	})
}

// SetWatchErrorHandlerWithContext implements toolscache.SharedInformer.
func (i *Informer) SetWatchErrorHandlerWithContext(handler toolscache.WatchErrorHandlerWithContext) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.started {
		return errStarted
	}
	i.watchErrorHandler = handler
	return nil
}
