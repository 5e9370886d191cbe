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

// SourceWatcher is what a watch needs of a controller. Every controller-runtime controller is one.
type SourceWatcher[request comparable] interface {
	// Watch starts the source with the controller's queue, now or when the controller starts.
	Watch(src source.TypedSource[request]) error
}

// Watcher says what to watch and who is told. NewWatcher makes one; the interface is sealed.
type Watcher interface {
	// Name of the watch, unique within an extension.
	Name() string
	// Object is an example of the kind.
	Object() client.Object

	spec(scheme *runtime.Scheme) (spec, error)
}

// ContentWatch says of what content to watch the kinds, and who is told. NewContentWatch makes one;
// the interface is sealed.
type ContentWatch interface {
	// Name of the watch, unique within an extension.
	Name() string
	// Objects are the content.
	Objects() []client.Object

	spec(scheme *runtime.Scheme) (spec, error)
}

// WatchError is what OnError is told: that the informer of a watch changed its state, and why; also
// that it has recovered. It is no error value, Err is.
type WatchError struct {
	Extension client.ObjectKey
	// Name of the watch.
	Name string
	// Kind and Scope are what the informer watches.
	Kind  schema.GroupVersionKind
	Scope scopedcache.Scope
	// Identity is who watches.
	Identity healthprobe.Identity
	// State is how the informer does now: scopedcache.Syncing, Synced (it has recovered),
	// Forbidden, NotServed, or Failing.
	State scopedcache.State
	// Err is why, nil when Syncing or Synced. It never holds a secret.
	Err error
}

// TypedWatcherOptions say what to watch with an extension's connection, and which controller is
// told.
type TypedWatcherOptions[object client.Object, request comparable] struct {
	// Name of the watch, unique within the extension. Choose one per controller and kind; a scope
	// that may change belongs in the name.
	Name string
	// Watcher is the controller whose queue gets the requests.
	Watcher SourceWatcher[request]
	// Kind of the objects; for unstructured objects and metadata, with its GroupVersionKind set.
	Kind object
	// EventHandler turns events into requests. It gets objects of its own, which it may change. It
	// must not block: it would hold up its own events. A panic loses the event and is logged. One
	// that serves several extensions is called by all of them at the same time; so are Predicates.
	EventHandler handler.TypedEventHandler[object, request]
	// Predicates filter the events before that.
	Predicates []predicate.TypedPredicate[object]
	// Scope restricts the watch; zero means all namespaces.
	Scope scopedcache.Scope
	// Dependent is who needs the watch: it ends when its last dependent is gone. "" stands for the
	// name itself.
	Dependent types.UID
	// OnError, if set, is told when the informer fails, is forbidden, its kind is not served, or
	// recovers: the latest state, once per change, from a goroutine of its own. ctx ends with the
	// connection. It may call Unwatch. A panic is logged.
	OnError func(ctx context.Context, err WatchError)
}

// WatcherOptions are TypedWatcherOptions for ordinary controllers.
type WatcherOptions = TypedWatcherOptions[client.Object, reconcile.Request]

// NewWatcher makes a Watcher. What is wrong with options is an error of Watch.
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
	made := spec{name: w.options.Name, parts: []partObject{whole}, dependent: w.options.Dependent,
		onError: w.options.OnError,
		start:   starter(w.options.Name, w.options.Watcher, w.options.EventHandler, w.options.Predicates)}
	return made, made.validate(w.options.Watcher == nil, w.options.EventHandler == nil)
}

// TypedContentWatchOptions say what an extension's content is, and which controller is told when
// objects of its kinds change.
type TypedContentWatchOptions[request comparable] struct {
	// Name of the watch, unique within the extension. Under it exactly the kinds of Objects are
	// watched.
	Name string
	// Watcher is the controller whose queue gets the requests.
	Watcher SourceWatcher[request]
	// Objects are the content: typed, unstructured, or metadata, with their GroupVersionKinds known
	// to the scheme or set. Each kind is watched in the representation of its objects. They are
	// read during WatchContent only, and must not change meanwhile.
	Objects []client.Object
	// EventHandler turns events about all objects of these kinds into requests, in and out of the
	// content: choose with Predicates, or by owner. It is called for all kinds and namespaces at
	// the same time. Otherwise it is as in TypedWatcherOptions.
	EventHandler handler.TypedEventHandler[client.Object, request]
	// Predicates filter the events before that.
	Predicates []predicate.TypedPredicate[client.Object]
	// Scope restricts the watches, by labels of the owner for example. Without a Namespace they are
	// where the objects are, each namespace on its own, so that rights in these namespaces suffice.
	// Objects that name no namespace are watched everywhere.
	Scope scopedcache.Scope
	// Dependent is whose content it is. Contents of several dependents under one name are watched
	// together.
	Dependent types.UID
	// OnError is as in TypedWatcherOptions.
	OnError func(ctx context.Context, err WatchError)
}

// ContentWatchOptions are TypedContentWatchOptions for ordinary controllers.
type ContentWatchOptions = TypedContentWatchOptions[reconcile.Request]

// NewContentWatch makes a ContentWatch. What is wrong with options is an error of WatchContent.
func NewContentWatch[request comparable](options TypedContentWatchOptions[request]) ContentWatch {
	return &typedContentWatch[request]{options: options}
}

type typedContentWatch[request comparable] struct {
	options TypedContentWatchOptions[request]
}

func (w *typedContentWatch[request]) Name() string             { return w.options.Name }
func (w *typedContentWatch[request]) Objects() []client.Object { return w.options.Objects }

func (w *typedContentWatch[request]) spec(scheme *runtime.Scheme) (spec, error) {
	made := spec{name: w.options.Name, content: true, dependent: w.options.Dependent, onError: w.options.OnError,
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
			made.parts = append(made.parts, p)
		}
	}
	return made, made.validate(w.options.Watcher == nil, w.options.EventHandler == nil)
}

// spec is what Watcher and ContentWatch come down to.
type spec struct {
	name      string
	content   bool // the parts may change
	parts     []partObject
	dependent types.UID
	onError   func(context.Context, WatchError)
	// start gives the controller a source. When the controller starts it, ready gets the handler to
	// feed.
	start func(inside func(context.Context) context.Context, ready func(toolscache.ResourceEventHandler) error) error
}

func (s spec) validate(noWatcher, noHandler bool) error {
	switch {
	case s.name == "":
		return errors.New("a watch needs a Name")
	case noWatcher:
		return errors.Errorf("watch %q needs a Watcher: the controller that is told", s.name)
	case noHandler:
		return errors.Errorf("watch %q needs an EventHandler", s.name)
	}
	return nil
}

// part is what one informer shows of a watch.
type part struct {
	kind   schema.GroupVersionKind
	goType reflect.Type // and so the representation
	scope  string       // in words, for scopes cannot be compared
}

// String names the part for people.
func (p part) String() string {
	where := "everywhere"
	if p.scope != "" {
		where = "in " + p.scope
	}
	return fmt.Sprintf("%s (%s) %s", p.kind.Kind, p.goType, where)
}

// partObject is a part, its scope, and an object of its kind.
type partObject struct {
	part
	scope  scopedcache.Scope
	object client.Object
}

// partOf says what to watch of the object's kind.
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
	return func(inside func(context.Context) context.Context, ready func(toolscache.ResourceEventHandler) error) error {
		return watcher.Watch(watchSource[request]{
			name: name,
			start: func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[request]) error {
				// controller-runtime's own adapter from informer to handler, predicates included;
				// it asks an informer to register it, so it gets one that only hands it over.
				adapter := &source.TypedInformer[object, request]{
					Informer:   handOver{ready: ready},
					Handler:    eventHandler,
					Predicates: predicates,
				}
				return adapter.Start(inside(ctx), queue)
			},
		})
	}
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

func (h handOver) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler,
	_ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return nil, h.ready(handler)
}
