package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// GroupVersion is the API version of the kinds, in the default group.
var GroupVersion = schema.GroupVersion{Group: "state.latchkey.dev", Version: "v1alpha1"}

// ExtensionUIDLabel is a label of Connections and Scopes: the UID of the extension.
const ExtensionUIDLabel = "state.latchkey.dev/extension-uid"

// States of a Connection.
const (
	StateConnected    = "Connected"    // there is a connection, and no problem that is not muted
	StateDegraded     = "Degraded"     // there is a connection, and some of the work does not get done
	StateConnecting   = "Connecting"   // the first connect is in progress
	StateDisconnected = "Disconnected" // there is none, also while it is tried again
	StateUnknown      = "Unknown"      // a replica is not heard that had the extension last, or may have it
)

// Reasons of a Connection that only the view of all replicas of a fleet has.
const (
	// ReasonNoReplica: no replica has the extension, and all members of the fleet are heard. State is
	// Disconnected.
	ReasonNoReplica = "NoReplica"
	// ReasonReplicaSilent: the replica that had the extension last is not heard, or so late that
	// another one may have shown more. State is Unknown, and the rest is as the replica said it last,
	// without term and epoch. Or no replica that is heard has it, and one that is not may have it, or
	// it cannot be known which replicas there are: then the Connection names no replica.
	ReasonReplicaSilent = "ReplicaSilent"
)

// Types of the conditions of a Connection.
const (
	// ConditionConnected is True while there is a connection, degraded or not. Its reason is
	// "Connected", or why there is none.
	ConditionConnected = "Connected"
	// ConditionHealthy is True while there is a connection, and no problem that is not muted. Its
	// reason is "Healthy", "NotConnected", or that of the worst problem.
	ConditionHealthy = "Healthy"
)

// Connection is the connection of the extension of the same name and namespace.
//
// +kubebuilder:object:root=true
type Connection struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. The creationTimestamp is that of the extension.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Always empty.
	// +optional
	Spec ConnectionSpec `json:"spec,omitempty"`
	// The state of the connection.
	// +optional
	Status ConnectionStatus `json:"status,omitempty"`
}

// ConnectionSpec is empty: the extension says what to connect.
type ConnectionSpec struct{}

// ConnectionStatus is the state of a connection.
type ConnectionStatus struct {
	// Connected, Degraded, Connecting (for the first time) or Disconnected. Where replicas share the
	// extensions also Unknown: a replica is not heard that had it last, or may have it.
	State string `json:"state"`
	// Why there is no connection, or the worst problem, in one word. Empty while Connected.
	// +optional
	Reason string `json:"reason,omitempty"`
	// What the reason means here.
	// +optional
	Message string `json:"message,omitempty"`
	// Since when there is this connection, or none, or since when it is Degraded. A retry does not
	// change it.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// The user as the API server stated it. Absent while not connected.
	// +optional
	Identity *Identity `json:"identity,omitempty"`
	// Where the credential comes from, or would: a ServiceAccount or a Secret.
	// +optional
	Source string `json:"source,omitempty"`
	// URL of the API server.
	// +optional
	Target string `json:"target,omitempty"`
	// How often a connection was made so far, by this replica. Absent while Unknown: the replica may
	// have made more.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// Where replicas share the extensions: which one has it, or had it last.
	// +optional
	Replica string `json:"replica,omitempty"`
	// Where replicas share the extensions by Leases: how often that of the extension was taken before,
	// by all replicas. It grows from one replica to the next, and when one takes the Lease again.
	// Absent while Unknown.
	// +optional
	Term int64 `json:"term,omitempty"`
	// Where replicas share the extensions: the replicas that claim it, if they are several. They say
	// so by ways of which one may be late, while the extension moves.
	// +optional
	// +listType=atomic
	ClaimedBy []string `json:"claimedBy,omitempty"`
	// When the current token expires. Absent if the credential does not expire.
	// +optional
	TokenExpires *metav1.Time `json:"tokenExpires,omitempty"`
	// Since when the connection uses its credential: the connect, or the last rotation. A renewed
	// token is the same credential. Absent while not connected.
	// +optional
	CredentialSince *metav1.Time `json:"credentialSince,omitempty"`
	// metadata.generation of the extension that the state is based on.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Results of the probes.
	// +optional
	Probe ProbeStatus `json:"probe,omitempty"`
	// How many scopes of the connection's cache the extension uses; see the resource scopes.
	Scopes int32 `json:"scopes"`
	// Random name of a cache that all extensions of the identity may use. Those with the same name
	// have one informer for equal scopes. Absent for a cache of its own, and while not connected.
	// +optional
	SharedCache string `json:"sharedCache,omitempty"`
	// Why work may not get done although there is a connection: one for each reason, those that are
	// not muted first, and the worst one first.
	// +optional
	// +listType=map
	// +listMapKey=reason
	Problems []Problem `json:"problems,omitempty"`
	// How many of the scopes are Forbidden.
	// +optional
	ForbiddenScopes int32 `json:"forbiddenScopes,omitempty"`
	// How many objects the cache has. Only in the answer to a get of this object.
	// +optional
	Objects *int64 `json:"objects,omitempty"`
	// How many permissions the identity was refused less than an hour ago, and not granted since.
	// Absent if no record is kept.
	// +optional
	Refused *int32 `json:"refused,omitempty"`
	// What the identity used and was refused. Only in the answer to a get of this object, if a record
	// is kept.
	// +optional
	Permissions *PermissionRecord `json:"permissions,omitempty"`
	// The registered watches.
	// +optional
	// +listType=atomic
	Watches []WatchStatus `json:"watches,omitempty"`
	// Connected and Healthy.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Problem is why work may not get done although there is a connection.
type Problem struct {
	// ProbesFailing, ScopesFailing, CredentialNotUsed, ScopesForbidden, RequestsRefused or
	// KindsNotServed.
	Reason string `json:"reason"`
	// What it is about, for people.
	// +optional
	Message string `json:"message,omitempty"`
	// Since when.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Whether the extension does not count as degraded because of it.
	// +optional
	Muted bool `json:"muted,omitempty"`
}

// Identity is a user of an API server.
type Identity struct {
	// Name of the user.
	Username string `json:"username"`
	// UID of the user.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// Groups of the user.
	// +optional
	// +listType=atomic
	Groups []string `json:"groups,omitempty"`
}

// PermissionRecord has the permissions that an identity used and was refused, in requests that the
// API server answered, since the extension first connected as that user. Where extensions share a
// cache, one of them has its list and watch; see the resource scopes. It is bounded: what takes too
// much memory has no names, or no namespaces.
type PermissionRecord struct {
	// Whose permissions these are.
	Username string `json:"username"`
	// Where the credential came from. It may be another one than that of the connection, until that
	// has connected.
	// +optional
	Source string `json:"source,omitempty"`
	// Permissions that requests used.
	// +optional
	// +listType=atomic
	Used []PermissionUse `json:"used,omitempty"`
	// Permissions that were denied less than an hour ago, and not granted since.
	// +optional
	// +listType=atomic
	Refused []PermissionUse `json:"refused,omitempty"`
	// Whether there was no room for some permissions.
	// +optional
	Incomplete bool `json:"incomplete,omitempty"`
}

// PermissionUse is a permission in the words of RBAC, and how it was used or refused.
type PermissionUse struct {
	// The verb. "escalate" (of a role) and "bind" (of a binding, whose role matters) are only refused,
	// and what begins with "impersonate-on:" to the user who impersonates.
	Verb string `json:"verb"`
	// API group. Empty for the core group.
	// +optional
	Group string `json:"group,omitempty"`
	// The resource, in plural.
	// +optional
	Resource string `json:"resource,omitempty"`
	// The subresource.
	// +optional
	Subresource string `json:"subresource,omitempty"`
	// Instead of a resource: the path.
	// +optional
	NonResourceURL string `json:"nonResourceURL,omitempty"`
	// Namespace of the objects. Empty for resources without namespaces, and for all namespaces.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Whether the requests were about several namespaces, one at a time, which are not on record.
	// +optional
	AnyNamespace bool `json:"anyNamespace,omitempty"`
	// Names of the objects. Empty if a request named none.
	// +optional
	// +listType=atomic
	Names []string `json:"names,omitempty"`
	// Whether there were too many names.
	// +optional
	AnyName bool `json:"anyName,omitempty"`
	// How many requests.
	Count int64 `json:"count"`
	// When the first request used it. Absent if refused.
	// +optional
	First *metav1.Time `json:"first,omitempty"`
	// When the latest request used it, or was refused.
	Last metav1.Time `json:"last"`
}

// ProbeStatus has the results of the probes. The times and the count are as of the answer, and
// change without another resourceVersion.
type ProbeStatus struct {
	// When the last probe ended. A request of the identity that succeeded counts as a probe.
	// +optional
	LastTime *metav1.Time `json:"lastTime,omitempty"`
	// When the API server last served the identity.
	// +optional
	LastSuccessTime *metav1.Time `json:"lastSuccessTime,omitempty"`
	// How many probes and connects failed since the last success.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// Why the last probe was no success.
	// +optional
	Error string `json:"error,omitempty"`
}

// WatchStatus is a watch of one kind in one scope.
type WatchStatus struct {
	// Name of the watch.
	Name string `json:"name"`
	// What is watched.
	Selection `json:",inline"`
	// Namespaces of the objects, if the watch has a set of them. Each has a scope of its own.
	// +optional
	// +listType=atomic
	Namespaces []string `json:"namespaces,omitempty"`
	// Selector of the labels of the namespaces, if the watch has such a set.
	// +optional
	NamespaceSelector *string `json:"namespaceSelector,omitempty"`
	// Whether the namespaces are those in which the identity may list and watch the kind.
	// +optional
	WhereverAllowed bool `json:"whereverAllowed,omitempty"`
	// UIDs of the objects that need the watch.
	// +optional
	// +listType=atomic
	Dependents []types.UID `json:"dependents,omitempty"`
}

// Selection is a kind, and a part of its objects.
type Selection struct {
	// API version of the kind.
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`
	// Kind of the objects.
	// +optional
	Kind string `json:"kind,omitempty"`
	// Namespace of the objects. Empty for all namespaces, and for those of a set.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Label selector. Empty for all objects.
	// +optional
	LabelSelector string `json:"labelSelector,omitempty"`
	// Field selector. Empty for all objects.
	// +optional
	FieldSelector string `json:"fieldSelector,omitempty"`
}

// ConnectionList is a list of Connections.
//
// +kubebuilder:object:root=true
type ConnectionList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Connection `json:"items"`
}

// Scope is a part of the objects of a kind that a connection's cache reads. Its name is that of the
// extension and a hash of what is read.
//
// +kubebuilder:object:root=true
type Scope struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Always empty.
	// +optional
	Spec ScopeSpec `json:"spec,omitempty"`
	// The state of the scope.
	// +optional
	Status ScopeStatus `json:"status,omitempty"`
}

// ScopeSpec is empty: reads and watches determine the scopes.
type ScopeSpec struct{}

// ScopeStatus is the state of a scope.
type ScopeStatus struct {
	// Name of the extension, and of its Connection.
	Extension string `json:"extension"`
	// What is read.
	Selection `json:",inline"`
	// Typed, Unstructured or Metadata: the form in which the cache keeps the objects.
	Representation string `json:"representation"`
	// Syncing, Synced, Forbidden, Live, NotServed or Failing.
	State string `json:"state"`
	// Why the state is not Synced, as a reason of the API server.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Why the state is not Synced.
	// +optional
	Message string `json:"message,omitempty"`
	// Since when the state is what it is.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// How many objects the cache has. Only in the answer to a get of this object.
	// +optional
	Objects *int64 `json:"objects,omitempty"`
	// Who holds the scope: names of watches, with the UIDs of dependents.
	// +optional
	// +listType=atomic
	Dependents []string `json:"dependents,omitempty"`
}

// ScopeList is a list of Scopes.
//
// +kubebuilder:object:root=true
type ScopeList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Scope `json:"items"`
}
