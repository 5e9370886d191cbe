package watches

import (
	"context"
	"fmt"
	"reflect"

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

	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// SourceWatcher has the method of a controller that a watch needs. Every controller-runtime
// controller implements SourceWatcher.
type SourceWatcher[request comparable] interface {
	// Watch starts the source with the controller's queue, now or when the controller starts.
	Watch(src source.TypedSource[request]) error
}

// Watcher describes what to watch and which controller receives requests. NewWatcher returns a
// Watcher. The interface is sealed.
type Watcher interface {
	// Name of the watch, unique within an extension.
	Name() string
	// Object is an example of the kind.
	Object() client.Object

	spec(scheme *runtime.Scheme) (spec, error)
}

// ContentWatch describes the content whose kinds to watch, and which controller receives requests.
// NewContentWatch returns a ContentWatch. The interface is sealed.
type ContentWatch interface {
	// Name of the watch, unique within an extension.
	Name() string
	// Objects are the content.
	Objects() []client.Object

	spec(scheme *runtime.Scheme) (spec, error)
}

// WatchError is the argument of OnError: the new state of a watch's informer, and the reason. The
// new state may also be a recovery. WatchError does not implement error; use Err.
type WatchError struct {
	Extension client.ObjectKey
	// Name of the watch.
	Name string
	// Kind and Scope are what the informer watches.
	Kind  schema.GroupVersionKind
	Scope scopedcache.Scope
	// Identity is the identity that watches.
	Identity healthprobe.Identity
	// State is the current state of the informer: scopedcache.Syncing, Synced (the informer has
	// recovered), Forbidden, NotServed, or Failing.
	State scopedcache.State
	// Err is the reason, nil when Syncing or Synced. Err never contains a secret.
	Err error
}

// TypedWatcherOptions describes what to watch with an extension's connection, and which controller
// receives requests.
type TypedWatcherOptions[object client.Object, request comparable] struct {
	// Name of the watch, unique within the extension. Choose one name per controller and kind. If
	// the scope may change, include the scope in the name.
	Name string
	// Watcher is the controller whose queue receives the requests.
	Watcher SourceWatcher[request]
	// Kind is an example of the objects. Unstructured objects and metadata need their
	// GroupVersionKind.
	Kind object
	// EventHandler turns events into requests. The handler receives copies of objects, which it may
	// change. The handler must not block, because it would delay its own next events. A panic is
	// logged, and the event is lost. A handler that serves several extensions is called for all of
	// them concurrently, and so are Predicates.
	EventHandler handler.TypedEventHandler[object, request]
	// Predicates filter the events before EventHandler.
	Predicates []predicate.TypedPredicate[object]
	// Scope restricts the watch. The zero value means all namespaces.
	Scope scopedcache.Scope
	// Dependent is the object that needs the watch. The watch ends when its last dependent is gone.
	// Empty means that the watch's name itself counts as the dependent.
	Dependent types.UID
	// OnError, if set, is called when the informer fails, is forbidden, when the API server does
	// not serve its kind, or when the informer recovers. OnError receives only the latest state,
	// once per change, in a separate goroutine. ctx ends with the connection. OnError may call
	// Unwatch. A panic is logged.
	OnError func(ctx context.Context, err WatchError)
}

// WatcherOptions is TypedWatcherOptions for ordinary controllers.
type WatcherOptions = TypedWatcherOptions[client.Object, reconcile.Request]

// NewWatcher returns a Watcher. Watch returns an error if options are invalid.
func NewWatcher[object client.Object, request comparable](options TypedWatcherOptions[object, request]) Watcher {
	return &typedWatcher[object, request]{options: options}
}

type typedWatcher[object client.Object, request comparable] struct {
	options TypedWatcherOptions[object, request]
}

func (w *typedWatcher[object, request]) Name() string          { return w.options.Name }
func (w *typedWatcher[object, request]) Object() client.Object { return w.options.Kind }

func (w *typedWatcher[object, request]) spec(scheme *runtime.Scheme) (spec, error) {
	kind := reflect.ValueOf(w.options.Kind)
	if !kind.IsValid() || kind.Kind() == reflect.Pointer && kind.IsNil() {
		return spec{}, errors.Errorf("watch %q needs a Kind", w.options.Name)
	}
	whole, err := partOf(w.options.Kind, w.options.Scope, scheme)
	if err != nil {
		return spec{}, errors.WithMessagef(err, "watch %q", w.options.Name)
	}
	result := spec{name: w.options.Name, parts: []partObject{whole}, dependent: w.options.Dependent,
		onError: w.options.OnError,
		start:   starter(w.options.Name, w.options.Watcher, w.options.EventHandler, w.options.Predicates)}
	return result, result.validate(w.options.Watcher == nil, w.options.EventHandler == nil)
}

// TypedContentWatchOptions describes an extension's content, and which controller receives requests
// when objects of the content's kinds change.
type TypedContentWatchOptions[request comparable] struct {
	// Name of the watch, unique within the extension. Exactly the kinds of Objects are watched
	// under this name.
	Name string
	// Watcher is the controller whose queue receives the requests.
	Watcher SourceWatcher[request]
	// Objects are the content: typed, unstructured, or metadata, with their GroupVersionKinds known
	// to the scheme or set. Each kind is watched in the representation of its objects. Only
	// WatchContent reads the objects. Do not change them during that call.
	Objects []client.Object
	// EventHandler turns events about all objects of these kinds into requests, whether or not the
	// objects are in the content. To select objects, use Predicates or the owner. The handler is
	// called for all kinds and namespaces concurrently. Otherwise the rules of TypedWatcherOptions
	// apply.
	EventHandler handler.TypedEventHandler[client.Object, request]
	// Predicates filter the events before EventHandler.
	Predicates []predicate.TypedPredicate[client.Object]
	// Scope restricts the watches, for example by labels of the owner. Without a Namespace in
	// Scope, each namespace of the objects is watched separately, so permissions in these
	// namespaces are sufficient. Objects without a namespace are watched in all namespaces.
	Scope scopedcache.Scope
	// Dependent is the owner of the content. The contents of several dependents under one name are
	// watched together.
	Dependent types.UID
	// OnError is as in TypedWatcherOptions.
	OnError func(ctx context.Context, err WatchError)
}

// ContentWatchOptions is TypedContentWatchOptions for ordinary controllers.
type ContentWatchOptions = TypedContentWatchOptions[reconcile.Request]

// NewContentWatch returns a ContentWatch. WatchContent returns an error if options are invalid.
func NewContentWatch[request comparable](options TypedContentWatchOptions[request]) ContentWatch {
	return &typedContentWatch[request]{options: options}
}

type typedContentWatch[request comparable] struct {
	options TypedContentWatchOptions[request]
}

func (w *typedContentWatch[request]) Name() string             { return w.options.Name }
func (w *typedContentWatch[request]) Objects() []client.Object { return w.options.Objects }

func (w *typedContentWatch[request]) spec(scheme *runtime.Scheme) (spec, error) {
	result := spec{name: w.options.Name, content: true, dependent: w.options.Dependent, onError: w.options.OnError,
		start: starter(w.options.Name, w.options.Watcher, w.options.EventHandler, w.options.Predicates)}
	seen := map[part]bool{}
	for _, object := range w.options.Objects {
		scope := w.options.Scope
		if scope.Namespace == "" {
			scope.Namespace = object.GetNamespace()
		}
		p, err := partOf(object, scope, scheme)
		if err != nil {
			return spec{},
				errors.WithMessagef(err, "content %q, object %s", w.options.Name, client.ObjectKeyFromObject(object))
		}
		if !seen[p.part] {
			seen[p.part] = true
			result.parts = append(result.parts, p)
		}
	}
	return result, result.validate(w.options.Watcher == nil, w.options.EventHandler == nil)
}

// spec is the common form of Watcher and ContentWatch.
type spec struct {
	name      string
	content   bool // the parts may change
	parts     []partObject
	dependent types.UID
	onError   func(context.Context, WatchError)
	// start gives the controller a source. When the controller starts the source, ready is called
	// with the handler to feed. mark marks the handler's context.
	start func(mark func(context.Context) context.Context, ready func(toolscache.ResourceEventHandler) error) error
}

func (s spec) validate(noWatcher, noHandler bool) error {
	switch {
	case s.name == "":
		return errors.New("a watch needs a Name")
	case noWatcher:
		return errors.Errorf("watch %q needs a Watcher: the controller that receives the requests", s.name)
	case noHandler:
		return errors.Errorf("watch %q needs an EventHandler", s.name)
	}
	return nil
}

// part is the part of a watch that one informer serves.
type part struct {
	kind   schema.GroupVersionKind
	goType reflect.Type // determines the representation
	scope  string       // as a string, because scopes are not comparable
}

// String describes the part for error messages.
func (p part) String() string {
	place := "everywhere"
	if p.scope != "" {
		place = "in " + p.scope
	}
	return fmt.Sprintf("%s (%s) %s", p.kind.Kind, p.goType, place)
}

// partObject is a part, its scope, and an object of its kind.
type partObject struct {
	part
	scope  scopedcache.Scope
	object client.Object
}

// partOf returns the part for an object's kind, and its scope.
func partOf(object client.Object, scope scopedcache.Scope, scheme *runtime.Scheme) (partObject, error) {
	kind, err := apiutil.GVKForObject(object, scheme)
	if err != nil {
		return partObject{}, errors.WithStack(err)
	}
	return partObject{part: part{kind: kind, goType: reflect.TypeOf(object), scope: scope.String()}, scope: scope,
		object: object}, nil
}

// starter returns the start of a spec.
func starter[object client.Object, request comparable](name string, watcher SourceWatcher[request],
	eventHandler handler.TypedEventHandler[object,
		request], predicates []predicate.TypedPredicate[object]) func(func(context.Context) context.Context,
	func(toolscache.ResourceEventHandler) error) error {
	return func(mark func(context.Context) context.Context, ready func(toolscache.ResourceEventHandler) error) error {
		return watcher.Watch(watchSource[request]{
			name: name,
			start: func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[request]) error {
				// This is controller-runtime's own adapter from informer to handler, with
				// predicates. The adapter registers a handler with an informer, so it gets an
				// informer that only passes the handler on.
				adapter := &source.TypedInformer[object, request]{
					Informer:   handOver{ready: ready},
					Handler:    eventHandler,
					Predicates: predicates,
				}
				return adapter.Start(mark(ctx), queue)
			},
		})
	}
}

// watchSource is the source that the controller gets, once per registration.
type watchSource[request comparable] struct {
	name  string
	start source.TypedFunc[request]
}

func (s watchSource[request]) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[request]) error {
	return s.start(ctx, queue)
}

// String names the source in the controller's log.
func (s watchSource[request]) String() string { return fmt.Sprintf("latchkey watch %s", s.name) }

// handOver is an informer that only passes a handler to ready.
type handOver struct {
	cache.Informer
	ready func(toolscache.ResourceEventHandler) error
}

func (h handOver) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler,
	_ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return nil, h.ready(handler)
}
