package watches

import (
	"context"
	"fmt"
	"reflect"
	"unique"

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
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// controllerOf is the part of a controller that a watch needs.
type controllerOf[request comparable] interface {
	Watch(src source.TypedSource[request]) error
}

// Watcher describes what to watch and which controller receives requests; see clustercache.Watcher.
type Watcher interface {
	Name() string
	Object() client.Object
	Spec(scheme *runtime.Scheme) (Spec, error)
}

// ContentWatch describes the content whose kinds to watch, and which controller receives requests;
// see clustercache.ContentWatch.
type ContentWatch interface {
	Name() string
	Objects() []client.Object
	Spec(scheme *runtime.Scheme) (Spec, error)
}

// WatchError is the argument of OnError; see clustercache.WatchError.
type WatchError struct {
	Extension client.ObjectKey
	Name      string
	Kind      schema.GroupVersionKind
	Scope     scopedcache.Scope
	Identity  connstate.Identity
	State     scopedcache.State
	Err       error // nil when Syncing or Synced
}

// WatcherOptions are documented at clustercache.TypedWatcherOptions.
type WatcherOptions[object client.Object, request comparable] struct {
	Name         string
	Watcher      controllerOf[request]
	Kind         object
	EventHandler handler.TypedEventHandler[object, request]
	Predicates   []predicate.TypedPredicate[object]
	Scope        scopedcache.Scope
	Dependent    types.UID
	OnError      func(ctx context.Context, err WatchError)
}

// NewWatcher returns a Watcher. Watch returns an error if options are invalid.
func NewWatcher[object client.Object, request comparable](options WatcherOptions[object, request]) Watcher {
	return &typedWatcher[object, request]{options: options}
}

type typedWatcher[object client.Object, request comparable] struct {
	options WatcherOptions[object, request]
}

func (w *typedWatcher[object, request]) Name() string          { return w.options.Name }
func (w *typedWatcher[object, request]) Object() client.Object { return w.options.Kind }

func (w *typedWatcher[object, request]) Spec(scheme *runtime.Scheme) (Spec, error) {
	kind := reflect.ValueOf(w.options.Kind)
	if !kind.IsValid() || kind.Kind() == reflect.Pointer && kind.IsNil() {
		return Spec{}, errors.Errorf("watch %q needs a Kind", w.options.Name)
	}
	whole, err := partOf(w.options.Kind, w.options.Scope, scheme)
	if err != nil {
		return Spec{}, errors.WithMessagef(err, "watch %q", w.options.Name)
	}
	result := Spec{
		name:      w.options.Name,
		parts:     []partObject{whole},
		dependent: w.options.Dependent,
		onError:   w.options.OnError,
		start:     starter(w.options.Name, w.options.Watcher, w.options.EventHandler, w.options.Predicates),
	}
	return result, result.validate(w.options.Watcher == nil, w.options.EventHandler == nil)
}

// ContentWatchOptions are documented at clustercache.TypedContentWatchOptions.
type ContentWatchOptions[request comparable] struct {
	Name         string
	Watcher      controllerOf[request]
	Objects      []client.Object
	EventHandler handler.TypedEventHandler[client.Object, request]
	Predicates   []predicate.TypedPredicate[client.Object]
	Scope        scopedcache.Scope
	Dependent    types.UID
	OnError      func(ctx context.Context, err WatchError)
}

// NewContentWatch returns a ContentWatch. WatchContent returns an error if options are invalid.
func NewContentWatch[request comparable](options ContentWatchOptions[request]) ContentWatch {
	return &typedContentWatch[request]{options: options}
}

type typedContentWatch[request comparable] struct {
	options ContentWatchOptions[request]
}

func (w *typedContentWatch[request]) Name() string             { return w.options.Name }
func (w *typedContentWatch[request]) Objects() []client.Object { return w.options.Objects }

func (w *typedContentWatch[request]) Spec(scheme *runtime.Scheme) (Spec, error) {
	result := Spec{
		name:      w.options.Name,
		content:   true,
		dependent: w.options.Dependent,
		onError:   w.options.OnError,
		start:     starter(w.options.Name, w.options.Watcher, w.options.EventHandler, w.options.Predicates),
	}
	seen := map[unique.Handle[part]]bool{}
	for _, object := range w.options.Objects {
		scope := w.options.Scope
		if scope.Namespace == "" && scope.Namespaces == nil {
			scope.Namespace = object.GetNamespace()
		}
		p, err := partOf(object, scope, scheme)
		if err != nil {
			return Spec{},
				errors.WithMessagef(err, "content %q, object %s", w.options.Name, client.ObjectKeyFromObject(object))
		}
		if !seen[p.part] {
			seen[p.part] = true
			result.parts = append(result.parts, p)
		}
	}
	return result, result.validate(w.options.Watcher == nil, w.options.EventHandler == nil)
}

// Spec is the common form of Watcher and ContentWatch.
type Spec struct {
	name      string
	content   bool // the parts may change
	parts     []partObject
	dependent types.UID
	onError   func(context.Context, WatchError)
	// start gives the controller a source. When the controller starts the source, ready is called
	// with the handler to feed. mark marks the handler's context.
	start func(mark func(context.Context) context.Context, ready func(toolscache.ResourceEventHandler) error) error
}

func (s Spec) validate(noWatcher, noHandler bool) error {
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
	part   unique.Handle[part] // 8 bytes, where a part takes 80
	scope  scopedcache.Scope
	object client.Object
}

// partOf returns the part for an object's kind, and its scope.
func partOf(object client.Object, scope scopedcache.Scope, scheme *runtime.Scheme) (partObject, error) {
	kind, err := apiutil.GVKForObject(object, scheme)
	if err != nil {
		return partObject{}, errors.WithStack(err)
	}
	key := part{kind: kind, goType: reflect.TypeOf(object), scope: scope.String()}
	return partObject{part: unique.Make(key), scope: scope, object: object}, nil
}

// kindInPart is a kind in a representation.
type kindInPart struct {
	gvk    schema.GroupVersionKind
	goType reflect.Type
}

func kindIn(p unique.Handle[part]) kindInPart { return kindInPart{p.Value().kind, p.Value().goType} }

// withoutNamespace returns the part for all namespaces.
func (p partObject) withoutNamespace() partObject {
	p.scope.Namespace, p.scope.Namespaces = "", nil
	key := p.part.Value()
	key.scope = p.scope.String()
	p.part = unique.Make(key)
	return p
}

// starter returns the start of a Spec.
func starter[object client.Object, request comparable](name string, watcher controllerOf[request],
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
