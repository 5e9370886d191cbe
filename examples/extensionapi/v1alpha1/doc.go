// Package v1alpha1 has the kind of the example: Reservation, of a meeting room.
//
// "make generate" writes the deep copies, and the OpenAPI definitions that "kubectl explain" and
// server-side apply need.
//
// +kubebuilder:object:generate=true
// +groupName=rooms.example.com
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.example.rooms.v1alpha1
package v1alpha1
