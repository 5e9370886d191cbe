package watches

import (
	"context"
	"maps"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/scopedcache"
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

// ready takes the handler from the controller and attaches it to what is there. What comes later
// finds it.
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
	scope      scopedcache.Scope
	object     client.Object // an example of the kind
	dependents []types.UID   // guarded by the registry's mu; sorted

	done     chan struct{} // closed when the watch has ended
	released chan struct{} // closed when the informer was given back after that

	mu       sync.Mutex
	ended    bool                    // guarded by mu
	conn     Connection              // guarded by mu; the latest one
	informer Informer                // guarded by mu; of conn
	feeding  Feeding                 // guarded by mu; set while the handler is fed from informer
	known    replay.Known            // guarded by mu; what the handler was told of by earlier connections
	calls    int                     // guarded by mu; of handler and OnError, under way
	idle     chan struct{}           // guarded by mu; closed when calls gets 0, nil if nobody waits
	said     scopedcache.ScopeState  // guarded by mu; what OnError was told last
	tell     *scopedcache.ScopeState // guarded by mu; what it is to be told next
	telling  Connection              // guarded by mu; a goroutine of this one is about it
}

func newWatch(reg *registration, p partObject, dependent types.UID) *watch {
	return &watch{of: reg, part: p.part, scope: p.scope, object: p.object.DeepCopyObject().(client.Object),
		dependents: []types.UID{dependent},
		done:       make(chan struct{}), released: make(chan struct{})}
}

// attach feeds the watch from the informer of a connection; it then owns the informer, unless it
// fails.
func (w *watch) attach(conn Connection, informer Informer) error {
	w.mu.Lock()
	if w.ended || w.conn != nil && w.conn.Generation() > conn.Generation() {
		w.mu.Unlock()
		informer.Release()
		return nil
	}
	w.letGoLocked() // an informer of an earlier connection has ended with it
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

// feed attaches the handler, if it and an informer are there.
func (w *watch) feed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.feedLocked()
}

func (w *watch) feedLocked() error {
	handler := w.of.handler.Load()
	if w.ended || handler == nil || w.informer == nil || w.feeding != nil || w.conn.Err() != nil {
		return nil // if the connection ended, the next one feeds the handler
	}
	conn := w.conn
	feeding, err := w.informer.Feed(copying{*handler},
		replay.Options{Known: maps.Clone(w.known), Call: func(note func() bool, f func()) { w.call(conn, note, f) }})
	if err != nil {
		if w.conn.Err() != nil {
			return nil
		}
		return errors.Wrap(err, "attaching the handler")
	}
	w.feeding, w.known = feeding, nil
	return nil
}

// letGoLocked keeps what the handler was told of by the connection it was fed from.
func (w *watch) letGoLocked() {
	if w.feeding != nil {
		w.known = w.feeding.Known()
	}
	w.informer, w.feeding = nil, nil
}

// detach lets go of the informer of a connection that has ended.
func (w *watch) detach() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil && w.conn.Err() != nil {
		w.letGoLocked()
	}
}

// end detaches the watch for ever. A handler that is being called may still finish.
func (w *watch) end() {
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return
	}
	conn, informer, feeding := w.conn, w.informer, w.feeding
	w.ended, w.informer, w.feeding, w.known = true, nil, nil, nil
	close(w.done)
	w.mu.Unlock()
	if informer == nil || conn.Err() != nil {
		close(w.released) // an informer whose connection has ended has stopped
		return
	}
	// Not here: while an informer stops, client-go has whoever removes a handler wait until every
	// handler has returned, and the caller may be one of them.
	go func() {
		defer close(w.released)
		if feeding != nil {
			feeding.Remove()
		}
		informer.Release()
	}()
}

func (w *watch) live() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.ended
}

// call calls f, a handler or OnError, unless the watch or the connection has ended, or note, which
// is called before that under mu and may be nil, says no. A panic costs the call.
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
				"extension", klog.KRef(w.of.registry.Extension.Namespace,
					w.of.registry.Extension.Name), "watch", w.of.name, "kind", w.part.kind, "stack", string(debug.Stack()))
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

// awaitIdle waits until no call is under way and the informer was given back, or ctx has ended. Use
// it after end.
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
					Kind: w.part.kind, Scope: w.scope, Identity: conn.Identity(), State: state.State, Err: state.LastError})
			})
		}
	}
}

// nextToTell takes what is to be told, nil if there is nothing more for the goroutine of conn. It
// is no news that a watch begins as it should.
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

// copying passes events to the handler as copies, which it may change.
type copying struct {
	next toolscache.ResourceEventHandler
}

func (c copying) OnAdd(object any, isInInitialList bool) {
	c.next.OnAdd(copyOf(object), isInInitialList)
}
func (c copying) OnUpdate(before, object any) { c.next.OnUpdate(copyOf(before), copyOf(object)) }
func (c copying) OnDelete(object any)         { c.next.OnDelete(copyOf(object)) }

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
