package watches

import (
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/scopedcache"
	"github.com/latchkey-dev/latchkey/internal/metrics"
)

// registration is a name: one source in one controller, and the parts that feed it.
type registration struct {
	registry *Registry
	name     string
	content  bool
	onError  func(context.Context, WatchError)

	turn    chan struct{} // holds a token while somebody adds to the registration
	started bool          // the controller has its source; guarded by turn

	parts   map[part]*watch // guarded by registry.mu; added to in turn
	handler atomic.Pointer[toolscache.ResourceEventHandler]
}

func newRegistration(registry *Registry, wanted spec) *registration {
	return &registration{registry: registry, name: wanted.name, content: wanted.content, onError: wanted.onError,
		turn: make(chan struct{}, 1), parts: map[part]*watch{}}
}

// ready takes the handler from the controller and attaches it to what is there. What comes later finds it.
func (reg *registration) ready(handler toolscache.ResourceEventHandler) error {
	reg.handler.Store(&handler)
	reg.registry.mu.Lock()
	all := make([]*watch, 0, len(reg.parts))
	for _, w := range reg.parts {
		all = append(all, w)
	}
	reg.registry.mu.Unlock()
	for _, w := range all {
		if err := w.feed(); err != nil {
			return err
		}
	}
	return nil
}

// watch is a part of a registration. It outlives connections: each of them attaches its informer.
type watch struct {
	of         *registration
	part       part
	object     client.Object // an example of the kind
	dependents []types.UID   // guarded by the registry's mu; sorted

	done     chan struct{} // closed when the watch has ended
	released chan struct{} // closed when the informer was given back after that

	mu       sync.Mutex
	ended    bool                                        // guarded by mu
	conn     Connection                                  // guarded by mu; the latest one
	informer Informer                                    // guarded by mu; of conn
	handle   toolscache.ResourceEventHandlerRegistration // guarded by mu; set while the handler is attached to informer
	told     map[client.ObjectKey]client.Object          // guarded by mu; what the handler knows of by conn; see missing.go
	missing  map[client.ObjectKey]remembered             // guarded by mu; what it knew of by earlier ones
	calls    int                                         // guarded by mu; of handler and OnError, under way
	idle     chan struct{}                               // guarded by mu; closed when calls gets 0, nil if nobody waits
	said     scopedcache.ScopeState                      // guarded by mu; what OnError was told last
	tell     *scopedcache.ScopeState                     // guarded by mu; what it is to be told next
	telling  Connection                                  // guarded by mu; a goroutine of this one is about it
}

func newWatch(reg *registration, p partObject, dependent types.UID) *watch {
	return &watch{of: reg, part: p.part, object: p.object.DeepCopyObject().(client.Object), dependents: []types.UID{dependent},
		done: make(chan struct{}), released: make(chan struct{})}
}

// attach feeds the watch from the informer of a connection; it then owns the informer, unless it fails.
func (w *watch) attach(conn Connection, informer Informer) error {
	w.mu.Lock()
	if w.ended || w.conn != nil && w.conn.Generation() > conn.Generation() {
		w.mu.Unlock()
		informer.Release()
		return nil
	}
	// An informer of an earlier connection has ended with it.
	w.forgetConnectionLocked()
	w.conn, w.informer, w.handle = conn, informer, nil
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

// feed attaches the handler, if it and an informer are there.
func (w *watch) feed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.feedLocked()
}

func (w *watch) feedLocked() error {
	handler := w.of.handler.Load()
	if w.ended || handler == nil || w.informer == nil || w.handle != nil || w.conn.Err() != nil {
		return nil // if the connection ended, the next one attaches the handler
	}
	handle, err := w.informer.AddEventHandler(&delivery{watch: w, conn: w.conn, next: *handler})
	if err != nil {
		if w.conn.Err() != nil {
			return nil
		}
		return errors.Wrap(err, "attaching the handler")
	}
	w.handle = handle
	if len(w.missing) > 0 {
		conn, informer := w.conn, w.informer
		conn.Go(func() { w.tellMissing(conn, informer, handle, *handler) })
	}
	return nil
}

// detach lets go of the informer of a connection that has ended.
func (w *watch) detach() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil && w.conn.Err() != nil {
		w.forgetConnectionLocked()
		w.informer, w.handle = nil, nil
	}
}

// end detaches the watch for ever. A handler that is being called may still finish.
func (w *watch) end() {
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return
	}
	conn, informer, handle := w.conn, w.informer, w.handle
	w.ended, w.informer, w.handle, w.told, w.missing = true, nil, nil, nil, nil
	close(w.done)
	w.mu.Unlock()
	if informer == nil || conn.Err() != nil {
		close(w.released) // an informer whose connection has ended has stopped
		return
	}
	// Not here: while an informer stops, client-go has whoever removes a handler wait until every handler has returned,
	// and the caller may be one of them.
	go func() {
		defer close(w.released)
		if handle != nil {
			_ = informer.RemoveEventHandler(handle) // it fails only if the informer does not know it
		}
		informer.Release()
	}()
}

func (w *watch) live() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.ended
}

// call calls f, a handler or OnError, unless the watch or the connection has ended, or note, which is called before that
// under mu and may be nil, says no. A panic costs the call.
func (w *watch) call(conn Connection, note func() bool, f func()) {
	w.mu.Lock()
	if w.ended || conn.Err() != nil || note != nil && !note() {
		w.mu.Unlock()
		return
	}
	w.calls++
	w.mu.Unlock()
	defer func() {
		if cause := recover(); cause != nil {
			metrics.HandlerPanics.Inc()
			w.of.registry.Logger.Error(errors.Errorf("%v", cause), "A handler panicked; its event is lost",
				"extension", klog.KRef(w.of.registry.Extension.Namespace, w.of.registry.Extension.Name), "watch", w.of.name, "kind", w.part.kind, "stack", string(debug.Stack()))
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.calls--; w.calls == 0 && w.idle != nil {
			close(w.idle)
			w.idle = nil
		}
	}()
	f()
}

// awaitIdle waits until no call is under way and the informer was given back, or ctx has ended. Use it after end.
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
	case <-w.released:
	case <-ctx.Done():
	}
}

// insideKey marks the contexts that handlers and OnError are called with.
type insideKey struct{}

func inside(ctx context.Context) context.Context { return context.WithValue(ctx, insideKey{}, true) }

func isInside(ctx context.Context) bool { return ctx.Value(insideKey{}) != nil }

// observer returns what Hold tells of the informer's state, nil if nobody wants to know.
func (w *watch) observer(conn Connection) func(scopedcache.ScopeState) {
	if w.of.onError == nil {
		return nil
	}
	return func(state scopedcache.ScopeState) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.ended || conn.Err() != nil || w.telling != nil && w.telling.Generation() > conn.Generation() {
			return
		}
		w.tell = &state
		if w.telling != conn {
			w.telling = conn
			conn.Go(func() { w.tellAll(conn) })
		}
	}
}

// tellAll calls OnError with the latest state until it has been told.
func (w *watch) tellAll(conn Connection) {
	for {
		state, news := w.nextToTell(conn)
		if state == nil {
			return
		}
		if news {
			w.call(conn, nil, func() {
				w.of.onError(inside(conn.Life()), WatchError{Extension: w.of.registry.Extension, Name: w.of.name,
					Kind: w.part.kind, Scope: w.part.scope, Identity: conn.Identity(), State: state.State, Err: state.LastError})
			})
		}
	}
}

// nextToTell takes what is to be told, nil if there is nothing more for the goroutine of conn. It is no news that a
// watch begins as it should.
func (w *watch) nextToTell(conn Connection) (state *scopedcache.ScopeState, news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tell == nil || w.telling != conn || w.ended || conn.Err() != nil {
		if w.telling == conn {
			w.telling = nil
		}
		return nil, false
	}
	state, w.tell = w.tell, nil
	before := w.said
	w.said = *state
	news = state.State != before.State || text(state.LastError) != text(before.LastError)
	return state, news && (before.State != "" || state.LastError != nil)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// delivery passes events of one connection's informer to the handler: copies, and none after the watch or the
// connection has ended.
type delivery struct {
	watch *watch
	conn  Connection
	next  toolscache.ResourceEventHandler
}

func (d *delivery) OnAdd(object any, isInInitialList bool) {
	var gone client.Object
	d.watch.call(d.conn, func() bool { gone = d.told(object); return true }, func() {
		if gone != nil {
			d.next.OnDelete(lastKnown(gone))
		}
		d.next.OnAdd(copyOf(object), isInInitialList)
	})
}

func (d *delivery) OnUpdate(oldObject, newObject any) {
	d.watch.call(d.conn, func() bool { d.told(newObject); return true }, func() { d.next.OnUpdate(copyOf(oldObject), copyOf(newObject)) })
}

func (d *delivery) OnDelete(object any) {
	d.watch.call(d.conn, func() bool { d.forget(object); return true }, func() { d.next.OnDelete(copyOf(object)) })
}

// told notes an object, under the watch's mu; see toldLocked.
func (d *delivery) told(object any) client.Object {
	shown, ok := object.(client.Object)
	if !ok || d.watch.conn != d.conn {
		return nil
	}
	return d.watch.toldLocked(shown)
}

// forget notes that an object is gone, under the watch's mu.
func (d *delivery) forget(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if shown, ok := object.(client.Object); ok && d.watch.conn == d.conn {
		delete(d.watch.told, client.ObjectKeyFromObject(shown))
	}
}

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
