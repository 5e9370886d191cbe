// Package v1alpha1 has the kinds of the example: Mailbox, which a tenant orders on the onboarding
// cluster, and ProviderConfig, which the platform team writes on the platform cluster.
//
// "make generate" writes the deep copies, and the definitions in ../config/crds.
//
// +kubebuilder:object:generate=true
// +groupName=mail.example.com
// +versionName=v1alpha1
package v1alpha1
