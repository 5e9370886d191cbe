// Package contentoperator is a small host operator: it installs the content of every
// ClusterExtension with the rights of the ServiceAccount that the extension names, and with no
// other.
//
// # Setup
//
// SetupWithManager adds the operator to a manager that has a ClusterCache; cmd/contentoperator is
// the program around it:
//
//	kubectl apply -f config/crd -f config/rbac -f config/admission
//	go run ./examples/contentoperator/cmd/contentoperator
//
// # Usage
//
// Put manifests into a ConfigMap that is named like the extension, in the namespace of its
// ServiceAccount. The operator reads it as that ServiceAccount, applies what it finds, watches what
// it applied and repairs what somebody changed. Conditions Connected and Installed of the extension
// say how it goes.
//
// # Considerations
//
//   - The operator itself needs no right on any content: see config/rbac.
//   - While an extension is not connected it waits for an event and does not poll.
//   - It is an example: it does not remove what left the content, nor uninstall.
package contentoperator
