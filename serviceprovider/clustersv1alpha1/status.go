package clustersv1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RequestPhase is the platform's answer to a request: PhasePending, PhaseGranted or PhaseDenied. A
// request without a phase is pending.
type RequestPhase string

// Phases of a request.
const (
	PhasePending RequestPhase = "Pending" // there is no answer yet
	PhaseGranted RequestPhase = "Granted" // for the generation that was observed
	PhaseDenied  RequestPhase = "Denied"  // for the generation that was observed
)

// PurposeWorkload is the purpose of clusters that run the workload of service providers.
const PurposeWorkload = "workload"

// RequestStatus is what the platform reports about a request.
type RequestStatus struct {
	// ObservedGeneration is the metadata.generation of the request that the phase is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Phase is the platform's answer. Empty means pending.
	// +optional
	Phase RequestPhase `json:"phase,omitempty"`
	// Conditions say why the request has its phase.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ObjectReference names an object in any namespace.
type ObjectReference struct {
	// Name of the object.
	Name string `json:"name"`
	// Namespace of the object.
	Namespace string `json:"namespace"`
}

// LocalObjectReference names an object in the namespace of the object that refers to it.
type LocalObjectReference struct {
	// Name of the object.
	// +optional
	Name string `json:"name,omitempty"`
}
