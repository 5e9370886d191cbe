package watches

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// ErrConflict is returned for a name that is in use for another kind or scope.
var ErrConflict = errors.New("the watch is registered for another kind or scope")

// unwatchPatience is how long Unwatch waits for a handler that is being called.
const unwatchPatience = time.Second

// Connection is what feeds watches. It ends once and for ever.
type Connection interface {
	// Hold returns the informer of the object's kind and representation in scope; see
	// scopedcache.Cache. name is whose it is.
	Hold(ctx context.Context, object client.Object, scope scopedcache.Scope, name string,
		observe func(scopedcache.ScopeState)) (Informer, error)
	// Life ends with the connection.
	Life() context.Context
	// Err is why the connection ended, nil while it lives.
	Err() error
	// Go runs f in a goroutine that the connection waits for, unless it has ended. f must end when
	// the connection does.
	Go(f func())
	// Generation is greater than that of every earlier connection of the extension.
	Generation() int64
	// Identity is who watches.
	Identity() healthprobe.Identity
}

// Informer is what a watch needs of an informer.
type Informer interface {
	// Feed calls the handler for what there is, for what changes, and for what options.Known has
	// and is not there any more.
	Feed(handler toolscache.ResourceEventHandler, options replay.Options) (Feeding, error)
	// Release gives the informer back.
	Release()
}

// Feeding is a handler that is fed.
type Feeding interface {
	// Known is what the handler was told of. It is told nothing any more. It does not wait for the
	// handler.
	Known() replay.Known
	// Remove ends it. While the informer stops it may wait until all handlers have returned.
	Remove()
}

// WatchState is a snapshot of one informer's worth of watch. A WatchContent has one per kind and
// namespace.
type WatchState struct {
	Name       string
	Kind       schema.GroupVersionKind
	Scope      scopedcache.Scope
	Dependents []types.UID // sorted; a watch without a dependent has the empty one
}

// Registry keeps the watches of one extension. Extension, Scheme and Logger must be set before use.
// Its methods may be called from any goroutine.
type Registry struct {
	Extension client.ObjectKey
	Scheme    *runtime.Scheme
	Logger    logr.Logger

	mu      sync.Mutex
	current Connection               // guarded by mu; nil while there is none
	ended   bool                     // guarded by mu
	names   map[string]*registration // guarded by mu
}

// Connected feeds all watches from conn, and those to come. Call it before anybody can get hold of
// conn.
func (r *Registry) Connected(conn Connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current = conn
	for _, w := range r.watchesLocked() {
		conn.Go(func() { r.resume(conn, w) })
	}
}

// Disconnected lets go of conn, which has ended. Watches stay registered.
func (r *Registry) Disconnected(conn Connection) {
	r.mu.Lock()
	if r.current == conn {
		r.current = nil
	}
	all := r.watchesLocked()
	r.mu.Unlock()
	for _, w := range all {
		w.detach()
	}
}

// End ends all watches for ever. Handlers that are being called may still finish.
func (r *Registry) End() {
	r.mu.Lock()
	r.ended, r.current = true, nil
	all := r.watchesLocked()
	r.names = nil
	r.mu.Unlock()
	for _, w := range all {
		w.end()
	}
}

// States returns a snapshot of all watches, sorted by name, kind and namespace.
func (r *Registry) States() (states []WatchState) {
	r.mu.Lock()
	for _, w := range r.watchesLocked() {
		states = append(states,
			WatchState{Name: w.of.name, Kind: w.part.kind, Scope: w.scope, Dependents: slices.Clone(w.dependents)})
	}
	r.mu.Unlock()
	slices.SortFunc(states, func(x, y WatchState) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Kind.String(), y.Kind.String()),
			cmp.Compare(x.Scope.String(), y.Scope.String()))
	})
	return states
}

// Len is the number of States.
func (r *Registry) Len() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, reg := range r.names {
		n += len(reg.parts)
	}
	return n
}

func (r *Registry) watchesLocked() (all []*watch) {
	for _, reg := range r.names {
		for _, w := range reg.parts {
			all = append(all, w)
		}
	}
	return all
}

// Watch registers a watch with the connection that the caller has seen, or adds its dependent to
// the one of that name. An error means that nothing was registered.
func (r *Registry) Watch(ctx context.Context, conn Connection, watcher Watcher) error {
	wanted, err := watcher.spec(r.Scheme)
	if err != nil {
		return err
	}
	return r.register(ctx, conn, wanted)
}

// WatchContent makes the parts of the content what is watched under its name for its dependent.
// What is gone ends, whatever becomes of what is new; the error tells of each kind that could not
// be watched.
func (r *Registry) WatchContent(ctx context.Context, conn Connection, content ContentWatch) error {
	wanted, err := content.spec(r.Scheme)
	if err != nil {
		return err
	}
	return r.register(ctx, conn, wanted)
}

// Unwatch takes dependents from the watches of that name, all if none are given, and ends those
// that are left with none. Then no handler or OnError of theirs is called any more: it waits for
// one that is being called, but for no more than a second, not after ctx has ended, and not at all
// inside of a handler or OnError, which is known by its context.
func (r *Registry) Unwatch(ctx context.Context, name string, dependents ...types.UID) {
	r.mu.Lock()
	var gone []*watch
	if reg := r.names[name]; reg != nil {
		for _, w := range reg.parts {
			if r.withoutLocked(w, dependents) {
				gone = append(gone, w)
			}
		}
		if len(reg.parts) == 0 {
			delete(r.names, name)
		}
	}
	r.mu.Unlock()
	endAll(ctx, gone)
}

// withoutLocked takes dependents from a watch, all if none are given, and the watch from its
// registration if that was the last one.
func (r *Registry) withoutLocked(w *watch, dependents []types.UID) (gone bool) {
	if w.dependents = withoutDependents(w.dependents, dependents); len(w.dependents) > 0 {
		return false
	}
	delete(w.of.parts, w.part)
	return true
}

// endAll ends watches and waits as Unwatch says.
func endAll(ctx context.Context, gone []*watch) {
	for _, w := range gone {
		w.end()
	}
	if len(gone) == 0 || isInside(ctx) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, unwatchPatience)
	defer cancel()
	for _, w := range gone {
		w.awaitIdle(ctx)
	}
}

// checkLocked returns why conn does not feed watches any more.
func (r *Registry) checkLocked(conn Connection) error {
	if !r.ended && r.current == conn {
		return nil
	}
	if err := conn.Err(); err != nil {
		return err
	}
	return errors.New("the connection has been replaced")
}

func (r *Registry) isCurrent(reg *registration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names[reg.name] == reg
}

// resume feeds a watch from a new connection. What fails is tried again as long as the connection
// lives: the kind may be served again.
func (r *Registry) resume(conn Connection, w *watch) {
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 6, Cap: 30 * time.Second}
	for conn.Err() == nil && w.live() {
		informer, err := conn.Hold(conn.Life(), w.object, w.scope, w.of.name, w.observer(conn))
		if err == nil {
			err = w.attach(conn, informer)
		}
		if err == nil {
			return
		}
		r.Logger.V(1).Info("Watch not resumed yet", "extension", klog.KRef(r.Extension.Namespace, r.Extension.Name),
			"watch", w.of.name, "kind", w.part.kind, "error", err.Error())
		select {
		case <-conn.Life().Done():
		case <-w.done:
		case <-time.After(backoff.Step()):
		}
	}
}
