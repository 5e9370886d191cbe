package scopedcache

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Representation is how an informer keeps objects.
type Representation string

const (
	// Typed: as the Go type that the scheme has for the kind.
	Typed Representation = "Typed"
	// Unstructured: as unstructured.Unstructured.
	Unstructured Representation = "Unstructured"
	// Metadata: as metav1.PartialObjectMetadata.
	Metadata Representation = "Metadata"
)

// State is how the informer of a scope does.
type State string

const (
	// Syncing: nothing is known yet, or the first list is under way. Reads wait.
	Syncing State = "Syncing"
	// Synced: the informer has what the API server has, and hears what changes.
	Synced State = "Synced"
	// Forbidden: the API server said that the identity may not list or watch. There is no informer,
	// and there are no objects; reads are refused. The API server is asked again.
	Forbidden State = "Forbidden"
	// NotServed: the API server does not serve the kind. There is no informer, and there are no
	// objects. The API server is asked again.
	NotServed State = "NotServed"
	// Failing: another error, which passes by itself or not. What the informer had is still read;
	// reads wait if it had nothing yet.
	Failing State = "Failing"
)

// settled reports whether it is known what a read gets.
func (s State) settled() bool { return s == Synced || s == Forbidden || s == NotServed }

// ScopeState is a snapshot of one scope. LastError and the selectors are shared: do not change
// them.
type ScopeState struct {
	GVK            schema.GroupVersionKind
	Representation Representation
	Scope          Scope
	State          State
	Since          time.Time // of this state
	LastError      error     // nil when Syncing or Synced
	Objects        int       // in the informer's store; not counted for observers
	// who holds the scope, sorted: HoldOptions Name and Dependent, with a space between. Readers
	// are not among them. Not told to observers
	Dependents []string
}
