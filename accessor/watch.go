package accessor

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/accessor/scopedcache"
)

// SourceWatcher is what a watch needs of a controller. Every controller-runtime controller is one.
type SourceWatcher[request comparable] interface {
	Watch(src source.TypedSource[request]) error
}

// Watcher says what to watch and who is told. NewWatcher makes one; the interface is sealed.
type Watcher interface {
	// Name of the watch, unique within an extension.
	Name() string
	// Object is an example of the kind.
	Object() client.Object

	validate() error
	scope() scopedcache.Scope
	dependent() types.UID
	// start gives the controller a source. When the controller starts it, ready gets the handler to feed.
	start(ready func(toolscache.ResourceEventHandler) error) error
}

// TypedWatcherOptions say what to watch with an extension's connection, and which controller is told.
type TypedWatcherOptions[object client.Object, request comparable] struct {
	// Name of the watch, unique within the extension. Choose one per controller and kind; a scope that may change
	// belongs in the name.
	Name string
	// Watcher is the controller whose queue gets the requests.
	Watcher SourceWatcher[request]
	// Kind of the objects; for unstructured objects and metadata, with its GroupVersionKind set.
	Kind object
	// EventHandler turns events into requests. It gets objects of its own, which it may change. It must not block.
	EventHandler handler.TypedEventHandler[object, request]
	// Predicates filter the events before that.
	Predicates []predicate.TypedPredicate[object]
	// Scope restricts the watch; zero means all namespaces.
	Scope scopedcache.Scope
	// Dependent is who needs the watch: it ends when its last dependent is gone. "" stands for the name itself.
	Dependent types.UID
}

// WatcherOptions are TypedWatcherOptions for ordinary controllers.
type WatcherOptions = TypedWatcherOptions[client.Object, reconcile.Request]

// NewWatcher makes a Watcher.
func NewWatcher[object client.Object, request comparable](options TypedWatcherOptions[object, request]) Watcher {
	return &typedWatcher[object, request]{options: options}
}

type typedWatcher[object client.Object, request comparable] struct {
	options TypedWatcherOptions[object, request]
}

func (w *typedWatcher[object, request]) Name() string             { return w.options.Name }
func (w *typedWatcher[object, request]) Object() client.Object    { return w.options.Kind }
func (w *typedWatcher[object, request]) scope() scopedcache.Scope { return w.options.Scope }
func (w *typedWatcher[object, request]) dependent() types.UID     { return w.options.Dependent }

func (w *typedWatcher[object, request]) validate() error {
	kind := reflect.ValueOf(w.options.Kind)
	switch {
	case w.options.Name == "":
		return errors.New("a watch needs a Name")
	case w.options.Watcher == nil:
		return errors.Errorf("watch %q needs a Watcher: the controller that is told", w.options.Name)
	case !kind.IsValid() || kind.Kind() == reflect.Pointer && kind.IsNil():
		return errors.Errorf("watch %q needs a Kind", w.options.Name)
	case w.options.EventHandler == nil:
		return errors.Errorf("watch %q needs an EventHandler", w.options.Name)
	}
	return nil
}

func (w *typedWatcher[object, request]) start(ready func(toolscache.ResourceEventHandler) error) error {
	return w.options.Watcher.Watch(watchSource[request]{
		name: w.options.Name,
		start: func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[request]) error {
			// controller-runtime's own adapter from informer to handler, predicates and panics included; it asks an
			// informer to register it, so it gets one that only hands it over.
			adapter := &source.TypedInformer[object, request]{
				Informer:   handOver{ready: ready},
				Handler:    w.options.EventHandler,
				Predicates: w.options.Predicates,
			}
			return adapter.Start(ctx, queue)
		},
	})
}

// watchSource is what the controller is given, once per registration.
type watchSource[request comparable] struct {
	name  string
	start source.TypedFunc[request]
}

func (s watchSource[request]) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[request]) error {
	return s.start(ctx, queue)
}

// String names the source in the controller's log.
func (s watchSource[request]) String() string { return fmt.Sprintf("latchkey watch %s", s.name) }

// handOver is an informer that passes on the handler it is given, and nothing else.
type handOver struct {
	cache.Informer
	ready func(toolscache.ResourceEventHandler) error
}

func (h handOver) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler, _ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return nil, h.ready(handler)
}

// watch is a registration. It outlives connections: each of them attaches its informer.
type watch struct {
	name   string
	kind   schema.GroupVersionKind
	object client.Object // an example of the kind
	scope  scopedcache.Scope

	dependents []types.UID   // guarded by the accessor's mu; sorted
	registered chan struct{} // closed when the first attach succeeded or failed
	failed     error         // why it failed; written before registered is closed

	mu       sync.Mutex
	ended    bool                                        // guarded by mu
	handler  toolscache.ResourceEventHandler             // guarded by mu; nil until the controller started the source
	informer cache.Informer                              // guarded by mu; of the latest connection
	conn     *connection                                 // guarded by mu; whose informer it is
	handle   toolscache.ResourceEventHandlerRegistration // guarded by mu; set while handler is attached to informer
}

func newWatch(w Watcher, scheme *runtime.Scheme) (*watch, error) {
	if err := w.validate(); err != nil {
		return nil, err
	}
	object := w.Object()
	gvk, err := apiutil.GVKForObject(object, scheme)
	if err != nil {
		return nil, errors.Wrapf(err, "watch %q", w.Name())
	}
	return &watch{
		name: w.Name(), kind: gvk, object: object.DeepCopyObject().(client.Object), scope: w.scope(),
		dependents: []types.UID{w.dependent()},
		registered: make(chan struct{}),
	}, nil
}

// sameAs reports whether both see the same objects in the same representation.
func (w *watch) sameAs(other *watch) bool {
	return w.kind == other.kind && w.scope == other.scope && fmt.Sprintf("%T", w.object) == fmt.Sprintf("%T", other.object)
}

// ready takes the handler from the controller.
func (w *watch) ready(handler toolscache.ResourceEventHandler) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handler = handler
	if err := w.attachLocked(); err != nil && w.conn.err() == nil {
		return err
	}
	return nil // if the connection ended, the next one attaches the handler
}

// attach feeds the watch from the informer of a connection.
func (w *watch) attach(conn *connection, informer cache.Informer) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil && w.conn.generation > conn.generation {
		return nil // a later connection was quicker
	}
	w.conn, w.informer, w.handle = conn, informer, nil
	return w.attachLocked()
}

func (w *watch) attachLocked() error {
	if w.ended || w.handler == nil || w.informer == nil || w.conn.err() != nil {
		return nil
	}
	handle, err := w.informer.AddEventHandler(&delivery{watch: w, conn: w.conn, next: w.handler})
	if err != nil {
		if ended := w.conn.err(); ended != nil {
			return ended
		}
		return errors.Wrapf(err, "watch %q", w.name)
	}
	w.handle = handle
	return nil
}

// end detaches the watch for ever. A handler that is being called may still finish.
func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if w.handle != nil {
		_ = w.informer.RemoveEventHandler(w.handle) // it fails only if the informer does not know it
		w.handle = nil
	}
}

func (w *watch) live() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.ended
}

// delivery passes events of one connection's informer to the handler: copies, and none after the watch or the
// connection has ended.
type delivery struct {
	watch *watch
	conn  *connection
	next  toolscache.ResourceEventHandler
}

func (d *delivery) open() bool { return d.conn.err() == nil && d.watch.live() }

func (d *delivery) OnAdd(object any, isInInitialList bool) {
	if d.open() {
		d.next.OnAdd(copyOf(object), isInInitialList)
	}
}

func (d *delivery) OnUpdate(oldObject, newObject any) {
	if d.open() {
		d.next.OnUpdate(copyOf(oldObject), copyOf(newObject))
	}
}

func (d *delivery) OnDelete(object any) {
	if d.open() {
		d.next.OnDelete(copyOf(object))
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

// withDependent returns dependents with one more, sorted and without doubles.
func withDependent(dependents []types.UID, dependent types.UID) []types.UID {
	if at, found := slices.BinarySearch(dependents, dependent); !found {
		return slices.Insert(slices.Clone(dependents), at, dependent)
	}
	return dependents
}

// withoutDependents returns what is left of dependents; none given means all go.
func withoutDependents(dependents, gone []types.UID) []types.UID {
	if len(gone) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(dependents), func(uid types.UID) bool { return slices.Contains(gone, uid) })
}
