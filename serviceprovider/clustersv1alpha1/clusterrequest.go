package clustersv1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterRequestSpec says which cluster is wanted. The spec never changes.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable"
type ClusterRequestSpec struct {
	// Purpose of the cluster, such as PurposeWorkload.
	// +kubebuilder:validation:MinLength=1
	Purpose string `json:"purpose"`
	// WaitForClusterDeletion says whether the request outlives its deletion until the cluster is
	// gone. Unset leaves that to the platform.
	// +optional
	WaitForClusterDeletion *bool `json:"waitForClusterDeletion,omitempty"`
}

// ClusterRequestStatus is what the scheduler of the platform reports.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cluster) || has(self.cluster)",message="cluster may not be removed once set"
type ClusterRequestStatus struct {
	RequestStatus `json:",inline"`

	// Cluster is the cluster that was found or created for the request.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cluster is immutable"
	Cluster *ObjectReference `json:"cluster,omitempty"`
}

// ClusterRequest asks the platform for a cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=cr;creq
// +kubebuilder:printcolumn:JSONPath=".spec.purpose",name="Purpose",type=string
// +kubebuilder:printcolumn:JSONPath=".status.phase",name="Phase",type=string
type ClusterRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what is wanted, and Status what the platform reports.
	Spec   ClusterRequestSpec   `json:"spec"`
	Status ClusterRequestStatus `json:"status,omitempty"`
}

// IsGranted reports whether the request has a cluster. Its spec never changes, so the generation
// that the platform observed does not matter.
func (r *ClusterRequest) IsGranted() bool { return r.Status.Phase == PhaseGranted }

// IsDenied reports whether the platform denied the request.
func (r *ClusterRequest) IsDenied() bool { return r.Status.Phase == PhaseDenied }

// ClusterRequestList is a list of ClusterRequests.
//
// +kubebuilder:object:root=true
type ClusterRequestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the ClusterRequests.
	Items []ClusterRequest `json:"items"`
}
