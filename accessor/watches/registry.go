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

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// ErrConflict is returned for a name that is in use for another kind or scope.
var ErrConflict = errors.New("the watch is registered for another kind or scope")

// unwatchTimeout is how long Unwatch waits for a running handler.
const unwatchTimeout = time.Second

// Connection feeds watches. After its end a Connection never resumes.
type Connection interface {
	// Hold returns the informer of the object's kind and representation in scope; see
	// scopedcache.Cache. name is the name of the watch.
	Hold(ctx context.Context, object client.Object, scope scopedcache.Scope, name string,
		observe func(scopedcache.ScopeState)) (Informer, error)
	// IsClusterScoped reports whether objects of a kind have no namespace. IsClusterScoped may ask
	// the API server. It returns false if that is not known.
	IsClusterScoped(ctx context.Context, kind schema.GroupVersionKind) bool
	// Life returns a context that ends with the connection.
	Life() context.Context
	// Err returns the reason why the connection ended, nil before that.
	Err() error
	// Go runs f in a goroutine that the connection waits for, unless it has ended. f must end when
	// the connection does.
	Go(f func())
	// Epoch returns a number that is greater than that of every earlier connection of the
	// extension.
	Epoch() int64
	// Identity returns the identity that watches.
	Identity() connstate.Identity
}

// Informer has the methods of an informer that a watch needs.
type Informer interface {
	// Subscribe calls the handler for existing objects, for changes, and for deletions: objects of
	// options.Seen that do not exist any more. Without an error the subscription owns options.Seen.
	Subscribe(handler toolscache.ResourceEventHandler, options replay.Options) (Subscription, error)
	// Release ends the use of the informer.
	Release()
}

// Subscription is a handler that receives events from an informer.
type Subscription interface {
	// Seen ends the events and returns the objects that the handler has received. Seen does not
	// wait for the handler, and is called once.
	Seen() replay.Seen
	// Remove removes the handler from the informer. While the informer stops, Remove may wait until
	// all handlers have returned.
	Remove()
}

// WatchState is a snapshot of a watch with one informer. A WatchContent has one WatchState per kind
// and namespace.
type WatchState struct {
	Name       string
	Kind       schema.GroupVersionKind
	Scope      scopedcache.Scope
	Dependents []types.UID // sorted; "" if the watch was registered without a dependent
}

// Registry keeps the watches of one extension. Extension, Scheme and Logger must be set before use.
// Its methods may be called from any goroutine.
type Registry struct {
	Extension client.ObjectKey
	Scheme    *runtime.Scheme
	Logger    logr.Logger
	Metrics   *metrics.Cache // counts the panics of handlers; may be nil
	Changed   func()         // called when States changes, with locks held; must not block; may be nil

	mu      sync.Mutex
	current Connection               // guarded by mu; nil while there is none
	ended   bool                     // guarded by mu
	names   map[string]*registration // guarded by mu
}

// Connected feeds all current and future watches from conn. Call Connected before any caller can
// get conn.
func (r *Registry) Connected(conn Connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current = conn
	if all := r.watchesLocked(); len(all) > 0 {
		conn.Go(func() { r.resume(conn, all) })
	}
}

// Disconnected releases conn, which has ended. Watches stay registered.
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

// End ends all watches permanently. Running handlers may still finish.
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
			WatchState{Name: w.reg.name, Kind: w.part.Value().kind, Scope: w.scope, Dependents: slices.Clone(w.dependents)})
	}
	r.mu.Unlock()
	slices.SortFunc(states, func(x, y WatchState) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Kind.String(), y.Kind.String()),
			cmp.Compare(x.Scope.String(), y.Scope.String()))
	})
	return states
}

// Len returns the number of States.
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
		all = append(all, reg.parts...)
	}
	return all
}

// Watch registers a watch, or adds its dependent to the registered watch of that name. conn is the
// connection that the caller has seen. An error means that nothing was registered.
func (r *Registry) Watch(ctx context.Context, conn Connection, watcher Watcher) error {
	wanted, err := watcher.Spec(r.Scheme)
	if err != nil {
		return err
	}
	return r.register(ctx, conn, wanted)
}

// WatchContent watches exactly the parts of content under its name, for its dependent. Watches of
// parts that are no longer in the content end, even if new parts fail. The error describes each
// kind that could not be watched.
func (r *Registry) WatchContent(ctx context.Context, conn Connection, content ContentWatch) error {
	wanted, err := content.Spec(r.Scheme)
	if err != nil {
		return err
	}
	return r.register(ctx, conn, wanted)
}

// changed reports that States has changed.
func (r *Registry) changed() {
	if r.Changed != nil {
		r.Changed()
	}
}

// Unwatch removes dependents from the watches of that name, or all dependents if none are given.
// When the last dependent is gone, the watch ends, and from then on neither its handler nor OnError
// is called. Unwatch therefore waits up to one second, and no longer than ctx, for a call in
// progress. Inside of a handler or OnError, which Unwatch recognizes by its context, it does not
// wait.
func (r *Registry) Unwatch(ctx context.Context, name string, dependents ...types.UID) {
	r.mu.Lock()
	var gone []*watch
	if reg := r.names[name]; reg != nil {
		for _, w := range slices.Clone(reg.parts) {
			if r.removeDependentsLocked(w, dependents) {
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

// removeDependentsLocked removes dependents from a watch, or all if none are given. Without any
// dependent left, the watch is removed from its registration.
func (r *Registry) removeDependentsLocked(w *watch, dependents []types.UID) (gone bool) {
	before := len(w.dependents)
	if w.dependents = removeDependents(w.dependents, dependents); len(w.dependents) < before {
		r.changed()
	}
	if len(w.dependents) > 0 {
		return false
	}
	w.reg.removeLocked(w)
	return true
}

// endAll ends watches, and waits as documented at Unwatch.
func endAll(ctx context.Context, gone []*watch) {
	for _, w := range gone {
		w.end()
	}
	if len(gone) == 0 || calledFromHandler(ctx) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, unwatchTimeout)
	defer cancel()
	for _, w := range gone {
		w.awaitIdle(ctx)
	}
}

// checkLocked returns an error with the reason if conn does not feed watches any more.
func (r *Registry) checkLocked(conn Connection) error {
	if !r.ended && r.current == conn {
		return nil
	}
	if err := conn.Err(); err != nil {
		return err
	}
	return errors.New("the connection has been replaced")
}

// resume feeds watches from a new connection. What fails is retried. One goroutine does for all
// that succeed, because neither Hold nor attach waits, and many extensions connect at once after an
// outage.
func (r *Registry) resume(conn Connection, all []*watch) {
	for _, w := range all {
		if !r.resumed(conn, w) {
			conn.Go(func() { r.retry(conn, w) })
		}
	}
}

// retry feeds a watch as soon as that is possible, or until the connection or the watch ends: the
// kind may be served again later.
func (r *Registry) retry(conn Connection, w *watch) {
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 6, Cap: 30 * time.Second}
	for {
		select {
		case <-conn.Life().Done():
		case <-w.done.Done():
		case <-time.After(backoff.Step()):
		}
		if r.resumed(conn, w) {
			return
		}
	}
}

// resumed feeds a watch from a new connection, and reports whether nothing is left to do.
func (r *Registry) resumed(conn Connection, w *watch) bool {
	if conn.Err() != nil || !w.live() {
		return true
	}
	informer, err := conn.Hold(conn.Life(), w.example(), w.scope, w.reg.name, w.observer(conn))
	if err == nil {
		err = w.attach(conn, informer)
	}
	if err != nil {
		r.Logger.V(1).Info("Watch not resumed yet", "extension", klog.KRef(r.Extension.Namespace, r.Extension.Name),
			"watch", w.reg.name, "kind", w.part.Value().kind, "error", err.Error())
	}
	return err == nil
}
