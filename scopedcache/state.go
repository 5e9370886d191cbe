package scopedcache

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Representation is the form in which an informer stores objects.
type Representation string

const (
	// Typed objects have the Go type that the scheme has for the kind.
	Typed Representation = "Typed"
	// Unstructured objects are of type unstructured.Unstructured.
	Unstructured Representation = "Unstructured"
	// Metadata objects are of type metav1.PartialObjectMetadata.
	Metadata Representation = "Metadata"
)

// State is the state of a scope and its informer.
type State string

const (
	// Syncing means that nothing is known yet, or the first list is in progress. Reads wait.
	Syncing State = "Syncing"
	// Synced means that the informer has the objects of the API server, and receives changes. Reads
	// return these objects.
	Synced State = "Synced"
	// Forbidden means that the API server denies the identity list or watch. There is no informer,
	// and there are no objects. Reads return Forbidden. The cache keeps asking the API server.
	Forbidden State = "Forbidden"
	// NotServed means that the API server does not serve the kind. There is no informer, and there
	// are no objects. Reads return meta.NoKindMatchError. The cache keeps asking the API server.
	NotServed State = "NotServed"
	// Failing means another error, which may or may not be temporary. Reads return what the
	// informer had before. Reads wait if the informer had nothing yet.
	Failing State = "Failing"
)

// settled reports whether the result of a read is known.
func (s State) settled() bool { return s == Synced || s == Forbidden || s == NotServed }

// ScopeState is a snapshot of one scope. LastError and the selectors are shared with the cache: do
// not change them.
type ScopeState struct {
	GVK            schema.GroupVersionKind
	Representation Representation
	Scope          Scope
	State          State
	Since          time.Time // when this state began
	LastError      error     // nil when Syncing or Synced
	Objects        int       // in the informer's store; 0 in calls of OnStateChange
	// Dependents are the holders of the scope, sorted: Name and Dependent of HoldOptions, with a
	// space between. Readers are not included. Dependents is empty in calls of OnStateChange.
	Dependents []string
}
