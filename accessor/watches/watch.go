package watches

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"unique"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/hostcode"
	"github.com/latchkey-dev/latchkey/internal/latch"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// registration has the watches of one name: one source in one controller, and the parts that feed
// the source.
type registration struct {
	registry *Registry
	name     string
	content  bool
	onError  func(context.Context, WatchError)

	turn    chan struct{} // guarded by registry.mu; closed when the caller that adds is done, nil without one
	started bool          // the controller has its source; the caller with the turn has it

	parts   []*watch // guarded by registry.mu; only the caller with the turn adds parts
	handler atomic.Pointer[toolscache.ResourceEventHandler]
}

func newRegistration(registry *Registry, wanted Spec) *registration {
	return &registration{
		registry: registry,
		name:     wanted.name,
		content:  wanted.content,
		onError:  wanted.onError,
	}
}

// partLocked returns the watch of a part, nil if there is none. The caller holds registry.mu.
func (reg *registration) partLocked(p unique.Handle[part]) *watch {
	if at := slices.IndexFunc(reg.parts, func(w *watch) bool { return w.part == p }); at >= 0 {
		return reg.parts[at]
	}
	return nil
}

// removeLocked removes a watch if it is there. The caller holds registry.mu.
func (reg *registration) removeLocked(w *watch) {
	reg.parts = slices.DeleteFunc(reg.parts, func(other *watch) bool { return other == w })
}

// ready stores the controller's handler and attaches it to the existing parts. Later parts use the
// stored handler.
func (reg *registration) ready(handler toolscache.ResourceEventHandler) error {
	reg.handler.Store(&handler)
	reg.registry.mu.Lock()
	all := slices.Clone(reg.parts)
	reg.registry.mu.Unlock()
	for _, w := range all {
		if err := w.feed(); err != nil {
			return err
		}
	}
	return nil
}

// watch is a part of a registration. A watch continues across connections: each connection attaches
// its informer.
type watch struct {
	reg        *registration
	part       unique.Handle[part]
	scope      scopedcache.Scope
	object     client.Object // an example of the kind; nil for a typed kind
	dependents []types.UID   // guarded by the registry's mu; sorted

	done     latch.Latch // opened when the watch has ended
	released latch.Latch // opened when the informer was released after that

	mu           sync.Mutex
	ended        bool          // guarded by mu
	calls        int32         // guarded by mu; running calls of handler and OnError
	conn         Connection    // guarded by mu; the latest one
	informer     Informer      // guarded by mu; of conn
	subscription Subscription  // guarded by mu; set while the handler is fed from informer
	delivered    replay.Seen   // guarded by mu; what earlier connections delivered to the handler
	idle         chan struct{} // guarded by mu; closed when calls gets 0, nil without a waiter
	*reports                   // nil without OnError
}

func newWatch(reg *registration, p partObject, dependent types.UID) *watch {
	w := &watch{reg: reg, part: p.part, scope: p.scope, dependents: []types.UID{dependent}}
	switch p.object.(type) {
	case runtime.Unstructured, *metav1.PartialObjectMetadata:
		w.object = p.object.DeepCopyObject().(client.Object)
	}
	if reg.onError != nil {
		w.reports = &reports{}
	}
	return w
}

// example returns an object of the kind. Typed ones are created when they are needed, because some
// types have more than a kilobyte.
func (w *watch) example() client.Object {
	if w.object != nil {
		return w.object
	}
	kind := w.part.Value()
	object := reflect.New(kind.goType.Elem()).Interface().(client.Object)
	object.GetObjectKind().SetGroupVersionKind(kind.kind) // a type may be that of several kinds
	return object
}

// attach feeds the watch from the informer of a connection. attach takes over the informer, and
// releases it on an error.
func (w *watch) attach(conn Connection, informer Informer) error {
	w.mu.Lock()
	if w.ended || w.conn != nil && w.conn.Epoch() > conn.Epoch() {
		w.mu.Unlock()
		informer.Release()
		return nil
	}
	w.dropInformerLocked() // the informer of an earlier connection has ended with that connection
	w.conn, w.informer = conn, informer
	err := w.feedLocked()
	if err != nil {
		w.informer = nil
	}
	w.mu.Unlock()
	if err != nil {
		informer.Release()
	}
	return err
}

// feed attaches the handler to the informer, if both are set.
func (w *watch) feed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.feedLocked()
}

func (w *watch) feedLocked() error {
	handler := w.reg.handler.Load()
	if w.ended || handler == nil || w.informer == nil || w.subscription != nil || w.conn.Err() != nil {
		return nil // if the connection ended, the next one feeds the handler
	}
	conn := w.conn
	subscription, err := w.informer.Subscribe(copyingHandler{*handler},
		replay.Options{Seen: w.delivered, Call: func(note func() bool, f func()) { w.call(conn, note, f) }})
	if err != nil {
		if w.conn.Err() != nil {
			return nil
		}
		return errors.Wrap(err, "attaching the handler")
	}
	w.subscription, w.delivered = subscription, nil
	return nil
}

// dropInformerLocked clears the informer, and keeps what its connection delivered to the handler.
func (w *watch) dropInformerLocked() {
	if w.subscription != nil {
		w.delivered = w.subscription.Seen()
	}
	w.informer, w.subscription = nil, nil
}

// detach clears the informer if its connection has ended.
func (w *watch) detach() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil && w.conn.Err() != nil {
		w.dropInformerLocked()
	}
}

// end ends the watch permanently. A running handler may still finish.
func (w *watch) end() {
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return
	}
	conn, informer, subscription := w.conn, w.informer, w.subscription
	w.ended, w.informer, w.subscription, w.delivered = true, nil, nil, nil
	w.done.Open()
	w.mu.Unlock()
	if informer == nil || conn.Err() != nil {
		w.released.Open() // an informer whose connection has ended has stopped
		return
	}
	// Not in this goroutine: while an informer stops, client-go blocks the removal of a handler
	// until every handler has returned. The caller may be one of these handlers.
	go func() {
		defer w.released.Open()
		if subscription != nil {
			subscription.Remove()
		}
		informer.Release()
	}()
}

func (w *watch) live() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.ended
}

// call calls f, a handler or OnError, unless the watch or the connection has ended. If note is not
// nil, call first calls note under mu, and skips f if note returns false. call recovers from a
// panic of f, and the event is lost.
func (w *watch) call(conn Connection, note func() bool, f func()) {
	w.mu.Lock()
	if w.ended || conn.Err() != nil || note != nil && !note() {
		w.mu.Unlock()
		return
	}
	w.calls++
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.calls--; w.calls == 0 && w.idle != nil {
			close(w.idle)
			w.idle = nil
		}
	}()
	caller := hostcode.Caller{Metrics: w.reg.registry.Metrics, Logger: w.logger}
	_ = caller.Call("a handler", func() error { // the log has the error
		f()
		return nil
	})
}

// logger returns the logger of a handler that panicked.
func (w *watch) logger() logr.Logger {
	extension := w.reg.registry.Extension
	return w.reg.registry.Logger.WithValues("extension", klog.KRef(extension.Namespace, extension.Name),
		"watch", w.reg.name, "kind", w.part.Value().kind, "consequence", "the event is lost")
}

// awaitIdle waits until no call is running and the informer is released, or until ctx ends. Call
// awaitIdle after end.
func (w *watch) awaitIdle(ctx context.Context) {
	w.mu.Lock()
	if w.calls > 0 && w.idle == nil {
		w.idle = make(chan struct{})
	}
	idle := w.idle
	w.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
			return
		}
	}
	select {
	case <-w.released.Done():
	case <-ctx.Done():
	}
}

// handlerMark marks the contexts of handler and OnError calls.
type handlerMark struct{}

func withHandlerMark(ctx context.Context) context.Context {
	return context.WithValue(ctx, handlerMark{}, true)
}

func calledFromHandler(ctx context.Context) bool { return ctx.Value(handlerMark{}) != nil }

// copyingHandler passes copies of the objects to the handler, which may change them.
type copyingHandler struct {
	next toolscache.ResourceEventHandler
}

func (c copyingHandler) OnAdd(object any, isInInitialList bool) {
	c.next.OnAdd(copyOf(object), isInInitialList)
}
func (c copyingHandler) OnUpdate(before, object any) { c.next.OnUpdate(copyOf(before), copyOf(object)) }
func (c copyingHandler) OnDelete(object any)         { c.next.OnDelete(copyOf(object)) }

func copyOf(object any) any {
	switch object := object.(type) {
	case toolscache.DeletedFinalStateUnknown:
		object.Obj = copyOf(object.Obj)
		return object
	case runtime.Object:
		return object.DeepCopyObject()
	default:
		return object
	}
}
