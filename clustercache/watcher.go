package clustercache

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// Watcher has the kind to watch and the controller to notify. NewWatcher returns one. The interface
// is sealed.
type Watcher interface {
	// Name of the watch, unique within an extension.
	Name() string
	// Object is an example of the kind.
	Object() client.Object

	specifier
}

// specifier is what implementations of ClusterCache in this module need. It is not exported, so
// that the documentation shows no internal types.
type specifier interface {
	Spec(scheme *runtime.Scheme) (watches.Spec, error)
}

// ContentWatch has the content whose kinds to watch and the controller to notify. NewContentWatch
// returns one. The interface is sealed.
type ContentWatch interface {
	// Name of the watch, unique within an extension.
	Name() string
	// Objects are the content.
	Objects() []client.Object

	specifier
}

// SourceWatcher is the part of a controller that a watch needs. Every controller-runtime controller
// implements SourceWatcher, and so does fake.Controller: a reconciler that keeps its own controller
// as a SourceWatcher can be tested with that one.
type SourceWatcher[request comparable] interface {
	// Watch starts the source with the controller's queue, now or when the controller starts.
	Watch(src source.TypedSource[request]) error
}

// WatchError is the argument of OnError: the new state of a watch's informer, and the reason. The
// new state may also be a recovery. WatchError does not implement error; use Err.
type WatchError struct {
	// Extension is the key of the extension whose connection watches.
	Extension client.ObjectKey
	// Name of the watch.
	Name string
	// Kind and Scope are what the informer watches. Of a set of namespaces, each has its states, with
	// Scope.Namespace, and so has the set, with Scope.Namespaces.
	Kind  schema.GroupVersionKind
	Scope Scope
	// Identity is the identity that watches.
	Identity Identity
	// State is the current state of the informer: StateSyncing, StateSynced (the informer has
	// recovered), StateForbidden, StateNotServed, StateFailing or, of a set of namespaces,
	// StatePartial. StateLeft is the last one of a namespace that is no longer in the set, if the one
	// before was an error.
	State scopedcache.State
	// Err is the reason. It is nil when State is StateSyncing, StateSynced or StateLeft. Err never
	// contains a secret.
	Err error
}

// TypedWatcherOptions configure what to watch with an extension's connection, and which controller
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
	// Scope restricts the watch. The zero value means all namespaces, or those that the cache's
	// options name for the kind.
	Scope Scope
	// Dependent is the object that needs the watch. latchkey does not see when that object is
	// deleted: call Unwatch with the dependent then. The watch ends with its last dependent. Empty
	// means that the watch's name itself counts as the dependent.
	Dependent types.UID
	// OnError, if set, is called when the informer fails, is forbidden, when the API server does not
	// serve its kind, when the informer recovers, or when a namespace with an error leaves a set.
	// OnError receives only the latest state, once per change, in a separate goroutine. ctx ends with
	// the connection. OnError may call Unwatch. A panic is logged.
	OnError func(ctx context.Context, err WatchError)
}

// WatcherOptions is TypedWatcherOptions for ordinary controllers.
type WatcherOptions = TypedWatcherOptions[client.Object, ctrl.Request]

// NewWatcher returns a Watcher. Watch returns an error if options are invalid.
func NewWatcher[object client.Object, request comparable](options TypedWatcherOptions[object, request]) Watcher {
	return watches.NewWatcher(watches.WatcherOptions[object, request]{
		Name:         options.Name,
		Watcher:      options.Watcher,
		Kind:         options.Kind,
		EventHandler: options.EventHandler,
		Predicates:   options.Predicates,
		Scope:        options.Scope,
		Dependent:    options.Dependent,
		OnError:      onError(options.OnError),
	})
}

// TypedContentWatchOptions configure an extension's content, and which controller receives requests
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
	// called for all kinds concurrently and, unless Scope has Namespaces, for all namespaces.
	// Otherwise the rules of TypedWatcherOptions apply.
	EventHandler handler.TypedEventHandler[client.Object, request]
	// Predicates filter the events before EventHandler.
	Predicates []predicate.TypedPredicate[client.Object]
	// Scope restricts the watches, for example by labels of the owner. Without Namespace and
	// Namespaces in Scope, each namespace of the objects is watched separately, so permissions in
	// these namespaces are sufficient. Objects without a namespace are watched in all namespaces.
	Scope Scope
	// Dependent is the owner of the content. The contents of several dependents under one name are
	// watched together.
	Dependent types.UID
	// OnError is as in TypedWatcherOptions.
	OnError func(ctx context.Context, err WatchError)
}

// ContentWatchOptions is TypedContentWatchOptions for ordinary controllers.
type ContentWatchOptions = TypedContentWatchOptions[ctrl.Request]

// NewContentWatch returns a ContentWatch. WatchContent returns an error if options are invalid.
func NewContentWatch[request comparable](options TypedContentWatchOptions[request]) ContentWatch {
	return watches.NewContentWatch(watches.ContentWatchOptions[request]{
		Name:         options.Name,
		Watcher:      options.Watcher,
		Objects:      options.Objects,
		EventHandler: options.EventHandler,
		Predicates:   options.Predicates,
		Scope:        options.Scope,
		Dependent:    options.Dependent,
		OnError:      onError(options.OnError),
	})
}

// onError returns a function that calls report with the public form of its argument.
func onError(report func(context.Context, WatchError)) func(context.Context, watches.WatchError) {
	if report == nil {
		return nil
	}
	return func(ctx context.Context, err watches.WatchError) {
		report(ctx, WatchError{
			Extension: err.Extension,
			Name:      err.Name,
			Kind:      err.Kind,
			Scope:     err.Scope,
			Identity:  Identity(err.Identity),
			State:     err.State,
			Err:       err.Err,
		})
	}
}
