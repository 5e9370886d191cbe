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
	// Syncing: the first list is under way.
	Syncing State = "Syncing"
	// Synced: the informer has what the API server has, and hears what changes.
	Synced State = "Synced"
	// Forbidden: the API server said that the identity may not list or watch. The informer goes on trying. What it had
	// before is still read: an API server in its first moments denies rightful requests.
	Forbidden State = "Forbidden"
	// NotServed: the API server does not serve the kind any more. The informer goes on trying.
	NotServed State = "NotServed"
	// Failing: another error, which passes by itself or not. What the informer had is still read.
	Failing State = "Failing"
)

// ScopeState is a picture of one scope.
type ScopeState struct {
	GVK            schema.GroupVersionKind
	Representation Representation
	Scope          Scope
	State          State
	Since          time.Time // of this state
	LastError      error     // nil when Syncing or Synced
	Objects        int       // in the informer's store; not counted for observers
}
