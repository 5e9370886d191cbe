// Package contentoperator is a small host operator that installs the content of every
// ClusterExtension. For each extension the operator uses only the permissions of the ServiceAccount
// that the extension names.
//
// # Setup
//
// SetupWithManager adds the operator to a manager that has a ClusterCache. cmd/contentoperator is
// the program that does so:
//
//	kubectl apply -f config/crd -f config/rbac -f config/admission
//	go run ./examples/contentoperator/cmd/contentoperator
//
// # Usage
//
// Put manifests into a ConfigMap with the name of the extension, in the namespace of its
// ServiceAccount. The operator reads the ConfigMap as that ServiceAccount and applies the
// manifests, unless it lacks a permission that these take. Then the operator watches the applied
// objects and reverts changes to them. Conditions Connected, Permitted and Installed of the
// extension report the result.
//
// # Considerations
//
//   - The operator itself needs no access to any content: see config/rbac.
//   - While an extension is not connected or lacks permissions, the operator waits for an event and
//     does not poll.
//   - The operator is an example. Objects that left the content stay in the cluster, and there is
//     no uninstall.
package contentoperator
