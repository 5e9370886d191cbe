// Package v1alpha1 has the kinds of the state API: Connection and Scope.
//
// # Setup
//
// None. "make generate" writes the deep copies and the OpenAPI definitions.
//
// # Usage
//
// Package stateapi serves a [ConnectionList] and a [ScopeList] in the group of [GroupVersion], or
// in another group, so that two programs in one cluster do not collide.
//
// # Considerations
//
// Everything is status, and nobody writes it: the kinds show what a program has in memory.
//
// +kubebuilder:object:generate=true
// +groupName=state.latchkey.dev
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.latchkey.state.v1alpha1
package v1alpha1
