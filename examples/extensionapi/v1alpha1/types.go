package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API version of the kind.
var GroupVersion = schema.GroupVersion{Group: "rooms.example.com", Version: "v1alpha1"}

// Reservation reserves a room.
//
// +kubebuilder:object:root=true
type Reservation struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What is reserved.
	// +optional
	Spec ReservationSpec `json:"spec,omitempty"`
}

// ReservationSpec says what is reserved.
type ReservationSpec struct {
	// Room is the name of the room.
	Room string `json:"room"`
	// Seats is how many seats are needed.
	// +optional
	Seats int32 `json:"seats,omitempty"`
	// Guests are who comes.
	// +optional
	// +listType=set
	Guests []string `json:"guests,omitempty"`
}

// ReservationList is a list of Reservations.
//
// +kubebuilder:object:root=true
type ReservationList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Reservation `json:"items"`
}
