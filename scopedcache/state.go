package scopedcache

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Representation is the form in which an informer stores objects.
type Representation string

const (
	// RepresentationTyped means that objects have the Go type that the scheme has for the kind.
	RepresentationTyped Representation = "Typed"
	// RepresentationUnstructured means that objects are of type unstructured.Unstructured.
	RepresentationUnstructured Representation = "Unstructured"
	// RepresentationMetadata means that objects are of type metav1.PartialObjectMetadata.
	RepresentationMetadata Representation = "Metadata"
)

// State is the state of a scope and its informer.
type State string

const (
	// StateSyncing means that nothing is known yet, or the first list is in progress. Reads wait.
	StateSyncing State = "Syncing"
	// StateSynced means that the informer has the objects of the API server, and receives changes.
	// Reads return these objects.
	StateSynced State = "Synced"
	// StateForbidden means that the API server denies the identity list or watch. There is no
	// informer, and there are no objects. Reads return Forbidden, except for a Get with LiveGet of
	// [Options]. The cache keeps asking the API server.
	StateForbidden State = "Forbidden"
	// StateNotServed means that the API server does not serve the kind. There is no informer, and
	// there are no objects. Reads return meta.NoKindMatchError. The cache keeps asking the API
	// server.
	StateNotServed State = "NotServed"
	// StateFailing means another error, which may or may not be temporary. Reads return what the
	// informer had before. Reads wait if the informer had nothing yet.
	StateFailing State = "Failing"
	// StatePartial is the state of a set of namespaces of which some are Synced and something is
	// missing: others are not Synced, it is not known now which namespaces are in the set, or
	// MaxNamespaces leaves some out. LastError is a [PartialError], which says what. Reads and events
	// of each namespace are as the state of that namespace says.
	StatePartial State = "Partial"
	// StateLeft means that a set has no scope of this namespace any more: the namespace has left the
	// set, or one informer of all namespaces has taken its place. It is the last state of the
	// namespace, unless that comes back. Only OnStateChange of the set's holder receives it, for
	// namespaces whose states it received.
	StateLeft State = "Left"
	// StateLive means that the API server denies the identity list or watch, but that Gets of objects
	// that the identity may get go to the API server: see LiveGet of [Options]. There is no informer.
	// LastError says why. The state lasts for two AccessReviewIntervals after the last Get that found
	// its object. Only States of [Cache] has this state, and only for scopes without a holder, which
	// are Forbidden otherwise.
	StateLive State = "Live"
)

// settled reports whether the result of a read is known.
func (s State) settled() bool { return s == StateSynced || s == StateForbidden || s == StateNotServed }

// ScopeState is a snapshot of one scope. LastError and the selectors are shared with the cache: do
// not change them.
type ScopeState struct {
	// GVK, Representation and Scope are what the informer watches.
	GVK            schema.GroupVersionKind
	Representation Representation
	Scope          Scope
	State          State
	Since          time.Time // when this state began
	LastError      error     // nil when Syncing, Synced or Left
	Objects        int       // in the informer's store; 0 in calls of OnStateChange
	// Dependents are the holders of the scope, sorted: Name and Dependent of HoldOptions, with a
	// space between. Readers are not included. Dependents is empty in calls of OnStateChange.
	Dependents []string
	// Missed says that something needs what the scope does not have now: a holder, a user of the
	// informer that GetInformer returned, or a read that was Forbidden, or of a kind that is not
	// served, in the last ten minutes. Missed is false in calls of OnStateChange.
	Missed bool
}
