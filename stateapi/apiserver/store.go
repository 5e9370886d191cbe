package apiserver

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Context describes a request to a store. It ends with the request.
type Context struct {
	context.Context
	// User sent the request. User is never nil.
	User user.Info
	// Authorizer answers what else the user may do. The request itself is permitted already.
	Authorizer authorizer.Authorizer
	// GroupVersionResource is what the request is for.
	GroupVersionResource schema.GroupVersionResource
	// Namespace of the request. It is empty for cluster-scoped resources, and for lists and watches
	// of all namespaces.
	Namespace string
}

// Lister lists objects. Every store is a Lister.
type Lister[TList runtime.Object] interface {
	// List returns the objects that the options select, with the list's resourceVersion.
	List(ctx Context, options *metav1.ListOptions) (TList, error)
}

// Getter reads objects.
type Getter[T runtime.Object] interface {
	// Get returns an object, or a NotFound of apierrors.
	Get(ctx Context, name string, options *metav1.GetOptions) (T, error)
}

// Watcher watches objects.
type Watcher[T runtime.Object] interface {
	// Watch delivers events until ctx is done. The store closes the channel, when ctx is done or
	// earlier, and is the only one to close it. A watch that cannot begin is an error.
	Watch(ctx Context, options *metav1.ListOptions) (<-chan WatchEvent[T], error)
}

// Creater creates objects.
type Creater[T runtime.Object] interface {
	// Create returns the object as stored. The store honors options.DryRun. The store may keep
	// object.
	Create(ctx Context, object T, options *metav1.CreateOptions) (T, error)
}

// Updater changes objects, for updates, patches and applies. A store with an Updater needs a
// Getter.
type Updater[T runtime.Object] interface {
	// Update replaces an object and returns the object as stored. If object has a resourceVersion
	// that is not the stored one, the error is a Conflict of apierrors; the server then reads again
	// and tries again, unless the client asked for that version. Objects that Get returns need a
	// UID. The store honors options.DryRun. The store may keep object.
	Update(ctx Context, object T, options *metav1.UpdateOptions) (T, error)
}

// Deleter deletes objects. A store with a Deleter needs a Getter.
type Deleter interface {
	// Delete deletes an object. The preconditions in options have been compared with what Get
	// returned; a store with concurrent writers compares them again. The store honors
	// options.DryRun.
	Delete(ctx Context, name string, options *metav1.DeleteOptions) error
}

// Starter is a store that is to know when the server starts.
type Starter interface {
	// BeginServing is called by Run, before the first request.
	BeginServing()
}

// Store has all that a store may have. InstallStore takes any type that is a Lister, and serves the
// verbs whose interfaces the type implements.
type Store[T, TList runtime.Object] interface {
	Lister[TList]
	Getter[T]
	Watcher[T]
	Creater[T]
	Updater[T]
	Deleter
}

// WatchEvent is an event of a watch.
type WatchEvent[T runtime.Object] struct {
	// Type is the type of the event. A Bookmark has an Object with a resourceVersion only.
	Type   watch.EventType
	Object T
	// Err is the error of an event of type Error, after which the store closes the channel.
	Err error
}
