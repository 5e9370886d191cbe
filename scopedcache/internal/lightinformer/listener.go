package lightinformer

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/latchkey-dev/latchkey/internal/latch"
)

// minimumResync is the shortest period of resyncs, as in client-go.
const minimumResync = time.Second

// notification is a change that a handler receives.
type notification struct {
	kind        change
	old, object any
	initial     bool // of an object in the first list of the informer, or of the handler
}

type change int

const (
	added change = iota
	updated
	resynced // an update whose object has not changed
	deleted
	caughtUp // no change: the handler has received the initial objects
)

// listener is an event handler with the queue of its notifications. It has a goroutine while the
// queue is not empty.
type listener struct {
	informer *Informer
	handler  toolscache.ResourceEventHandler
	logger   *klog.Logger // nil for that of klog
	then     func()       // called after the initial objects; nil for nothing

	requested, period time.Duration // guarded by informer.mu: between resyncs; 0 for none
	nextResync        time.Time     // guarded by informer.mu
	resyncing         bool          // guarded by informer.mu: receives objects that have not changed

	synced   latch.Latch // the handler has received the initial objects
	finished latch.Latch // the handler was removed and no call is in progress

	mu      sync.Mutex     // after informer.mu
	queue   []notification // guarded by mu
	initial int            // guarded by mu: initial objects that the handler has not received
	active  bool           // guarded by mu: a goroutine takes from the queue
	ended   bool           // guarded by mu: nothing more is delivered
	listed  bool           // guarded by mu: all initial objects were added to the queue
}

var _ toolscache.ResourceEventHandlerRegistration = &listener{}

// AddEventHandler implements toolscache.SharedInformer.
func (i *Informer) AddEventHandler(handler toolscache.ResourceEventHandler) (
	toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(handler, toolscache.HandlerOptions{})
}

// AddEventHandlerWithResyncPeriod implements toolscache.SharedInformer.
func (i *Informer) AddEventHandlerWithResyncPeriod(handler toolscache.ResourceEventHandler,
	resync time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(handler, toolscache.HandlerOptions{ResyncPeriod: &resync})
}

// AddEventHandlerWithOptions implements toolscache.SharedInformer.
func (i *Informer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler,
	options toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerThen(handler, options, nil)
}

// AddEventHandlerThen is AddEventHandlerWithOptions, and then calls synced, once, when the handler
// has received the initial objects. The call comes where those of the handler do: after one of them
// and before the next. A handler that is removed before, or whose informer stops, gets no such
// call. With it nothing has to wait for each of many handlers.
func (i *Informer) AddEventHandlerThen(handler toolscache.ResourceEventHandler, options toolscache.HandlerOptions,
	synced func()) (toolscache.ResourceEventHandlerRegistration, error) {
	l := &listener{
		informer:  i,
		handler:   handler,
		logger:    options.Logger,
		then:      synced,
		requested: i.resync,
		resyncing: true,
	}
	if options.ResyncPeriod != nil {
		l.requested = *options.ResyncPeriod
	}
	if l.requested > 0 {
		l.requested = max(l.requested, minimumResync)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stopped {
		return nil, errors.New("the informer has stopped, so no handler can be added")
	}
	if l.requested > 0 && l.requested < i.resyncCheck && !i.started {
		i.resyncCheck = l.requested
		for _, other := range i.listeners {
			other.setPeriodLocked()
		}
	}
	l.setPeriodLocked()
	l.nextResync = time.Now().Add(l.period)
	i.listeners = append(i.listeners, l)
	if i.started {
		for _, object := range i.indexer.List() {
			l.add(notification{kind: added, object: object, initial: true})
		}
	}
	if i.HasSynced() {
		l.informerSynced()
	}
	return l, nil
}

// setPeriodLocked sets the period of resyncs: what was requested, and at least the interval of the
// informer's checks. The caller holds informer.mu.
func (l *listener) setPeriodLocked() {
	l.period = 0
	if l.requested > 0 && l.informer.resyncCheck > 0 {
		l.period = max(l.requested, l.informer.resyncCheck)
	}
}

// RemoveEventHandler implements toolscache.SharedInformer. A call of the handler that is in
// progress continues; no other call begins.
func (i *Informer) RemoveEventHandler(registration toolscache.ResourceEventHandlerRegistration) error {
	l, ok := registration.(*listener)
	if !ok || l.informer != i {
		return errors.Errorf("%T is not from AddEventHandler of this informer", registration)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.listeners = slices.DeleteFunc(i.listeners, func(other *listener) bool { return other == l })
	l.end()
	return nil
}

// add puts a notification into the queue. The caller holds informer.mu.
func (l *listener) add(n notification) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addLocked(n)
}

// addLocked is add for callers that hold mu.
func (l *listener) addLocked(n notification) {
	if l.ended {
		return
	}
	l.queue = append(l.queue, n)
	if n.initial {
		l.initial++
	}
	if !l.active {
		l.active = true
		l.informer.handling.Go(l.deliver)
	}
}

// informerSynced records that all initial objects are in the queue, or were in it.
func (l *listener) informerSynced() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listed = true
	if l.syncLocked() {
		l.addLocked(notification{kind: caughtUp})
	}
}

// syncLocked reports whether then is to be called: whether the handler has just received the last
// initial object.
func (l *listener) syncLocked() (call bool) {
	return l.listed && l.initial == 0 && l.synced.Open() && l.then != nil
}

// end empties the queue.
func (l *listener) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended, l.queue = true, nil
	if !l.active {
		l.finished.Open()
	}
}

// deliver calls the handler until the queue is empty.
func (l *listener) deliver() {
	for {
		l.mu.Lock()
		batch := l.queue
		l.queue = nil
		if len(batch) == 0 {
			l.active = false
			if l.ended {
				l.finished.Open()
			}
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		for n := range batch {
			l.mu.Lock()
			ended := l.ended
			l.mu.Unlock()
			if ended {
				break
			}
			l.call(batch[n])
			if batch[n].initial {
				l.mu.Lock()
				l.initial--
				then := l.syncLocked() && !l.ended
				l.mu.Unlock()
				if then {
					l.call(notification{kind: caughtUp})
				}
			}
			batch[n] = notification{} // frees the object
		}
	}
}

// call calls the handler. A panic ends the process, unless utilruntime.ReallyCrash says otherwise.
func (l *listener) call(n notification) {
	logger := klog.Background()
	if l.logger != nil {
		logger = *l.logger
	}
	defer utilruntime.HandleCrashWithLogger(logger)
	switch n.kind {
	case added:
		l.handler.OnAdd(n.object, n.initial)
	case updated, resynced:
		l.handler.OnUpdate(n.old, n.object)
	case deleted:
		l.handler.OnDelete(n.object)
	case caughtUp:
		l.then()
	}
}

// HasSynced reports whether the handler has received the objects that there were when it was added,
// or when the informer synced.
func (l *listener) HasSynced() bool { return l.synced.IsOpen() }

// HasSyncedChecker implements toolscache.ResourceEventHandlerRegistration.
func (l *listener) HasSyncedChecker() toolscache.DoneChecker {
	return checker{name: fmt.Sprintf("event handler %T", l.handler), done: &l.synced}
}

// ShutdownChan is closed when the handler was removed and no call is in progress. It is for
// toolscache.ShutDownEventHandler.
func (l *listener) ShutdownChan() <-chan struct{} { return l.finished.Done() }
