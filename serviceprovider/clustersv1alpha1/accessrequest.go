package clustersv1alpha1

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AccessRequestSpec says to which cluster access is wanted, and which permissions.
//
// +kubebuilder:validation:XValidation:rule="has(self.clusterRef) || has(self.requestRef)",message="spec.clusterRef or spec.requestRef must be set"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.clusterRef) || has(self.clusterRef)",message="clusterRef may not be removed once set"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.requestRef) || has(self.requestRef)",message="requestRef may not be removed once set"
// +kubebuilder:validation:XValidation:rule="has(self.token) != has(self.oidc)",message="exactly one of spec.token or spec.oidc must be set"
type AccessRequestSpec struct {
	// ClusterRef is the cluster. The platform sets ClusterRef if only RequestRef is set.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="clusterRef is immutable"
	// +optional
	ClusterRef *ObjectReference `json:"clusterRef,omitempty"`
	// RequestRef is the ClusterRequest of the cluster. ClusterRef takes precedence.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="requestRef is immutable"
	// +optional
	RequestRef *ObjectReference `json:"requestRef,omitempty"`
	// Token requests access with a token of a ServiceAccount.
	// +optional
	Token *TokenConfig `json:"token,omitempty"`
	// OIDC requests access with an OpenID Connect provider.
	// +optional
	OIDC *OIDCConfig `json:"oidc,omitempty"`
	// TTL is the time after its creation at which the platform deletes the request. Unset means
	// never.
	// +optional
	TTL *metav1.Duration `json:"ttl,omitempty"`
}

// TokenConfig says what the ServiceAccount may do.
type TokenConfig struct {
	// Permissions become Roles and ClusterRoles, which are bound to the ServiceAccount.
	// +optional
	Permissions []PermissionsRequest `json:"permissions,omitempty"`
	// RoleRefs are existing Roles and ClusterRoles to bind to the ServiceAccount.
	// +optional
	RoleRefs []RoleRef `json:"roleRefs,omitempty"`
}

// PermissionsRequest are permissions in one namespace, or in the whole cluster.
type PermissionsRequest struct {
	// Name of the Role or ClusterRole to create. Empty leaves the name to the platform.
	// +optional
	Name string `json:"name,omitempty"`
	// Namespace of the permissions. Empty means the whole cluster.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// DisableAutomaticNamespaceCreation leaves the namespace to others. Otherwise the platform
	// creates the namespace if it does not exist.
	// +optional
	DisableAutomaticNamespaceCreation bool `json:"disableAutomaticNamespaceCreation,omitempty"`
	// Rules are the permissions. Cached reads and watches need list and watch.
	Rules []rbacv1.PolicyRule `json:"rules"`
}

// RoleRef names a Role or ClusterRole.
type RoleRef struct {
	// Name of the role.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Namespace of a Role, empty for a ClusterRole.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Kind is Role or ClusterRole.
	// +kubebuilder:validation:Enum=Role;ClusterRole
	Kind string `json:"kind"`
}

// OIDCConfig is access with an OpenID Connect provider. Package serviceprovider never requests such
// access: the resulting kubeconfig would run a program.
type OIDCConfig struct {
	// Name of the provider.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Issuer is the URL of the provider.
	// +kubebuilder:validation:MinLength=1
	Issuer string `json:"issuer"`
	// ClientID at the provider.
	// +kubebuilder:validation:MinLength=1
	ClientID string `json:"clientID"`
	// GroupsPrefix of the groups. Unset means the name and a colon.
	// +optional
	GroupsPrefix *string `json:"groupsPrefix,omitempty"`
	// GroupsClaim has the groups.
	// +optional
	GroupsClaim string `json:"groupsClaim,omitempty"`
	// UsernamePrefix of the user names. Unset means the name and a colon.
	// +optional
	UsernamePrefix *string `json:"usernamePrefix,omitempty"`
	// UsernameClaim has the user name.
	// +optional
	UsernameClaim string `json:"usernameClaim,omitempty"`
	// ExtraScopes to request from the provider.
	// +optional
	ExtraScopes []string `json:"extraScopes,omitempty"`
	// RoleBindings to create for users and groups of the provider.
	// +optional
	RoleBindings []RoleBindings `json:"roleBindings,omitempty"`
	// Roles to create, bound to nothing.
	// +optional
	Roles []PermissionsRequest `json:"roles,omitempty"`
}

// RoleBindings binds roles to users and groups.
type RoleBindings struct {
	// Subjects without the prefixes of the provider.
	Subjects []rbacv1.Subject `json:"subjects"`
	// RoleRefs are the roles.
	RoleRefs []RoleRef `json:"roleRefs"`
}

// AccessRequestStatus is what the platform reports.
type AccessRequestStatus struct {
	RequestStatus `json:",inline"`

	// SecretRef is the Secret with the kubeconfig, in the namespace of the request.
	// +optional
	SecretRef *LocalObjectReference `json:"secretRef,omitempty"`
}

// AccessRequest asks the platform for access to a cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ar;areq
// +kubebuilder:printcolumn:JSONPath=".status.phase",name="Phase",type=string
type AccessRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what is wanted, and Status what the platform reports.
	Spec   AccessRequestSpec   `json:"spec"`
	Status AccessRequestStatus `json:"status,omitempty"`
}

// AccessRequestList is a list of AccessRequests.
//
// +kubebuilder:object:root=true
type AccessRequestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the AccessRequests.
	Items []AccessRequest `json:"items"`
}

// IsGranted reports whether the platform grants what the spec says now. A grant of an earlier
// generation does not count.
func (r *AccessRequest) IsGranted() bool {
	return r.Status.Phase == PhaseGranted && r.Status.ObservedGeneration == r.Generation
}

// IsDenied reports whether the platform denied what the spec says now. A denial that states no
// generation counts.
func (r *AccessRequest) IsDenied() bool {
	return r.Status.Phase == PhaseDenied &&
		(r.Status.ObservedGeneration == r.Generation || r.Status.ObservedGeneration == 0)
}
