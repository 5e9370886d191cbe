// Package assets finds the programs of a Kubernetes control plane on this machine.
//
// # Setup
//
// Nothing, where $KUBEBUILDER_ASSETS or setup-envtest's store has them; else "make controlplane".
//
// # Usage
//
// [Find] returns the directory, or an error that says what to do.
//
// # Considerations
//
// It depends on nothing but the standard library, so that asking is quick.
package assets
