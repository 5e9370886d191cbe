// Package assets finds the programs of a Kubernetes control plane on this machine.
//
// # Setup
//
// None if $KUBEBUILDER_ASSETS or setup-envtest's store has the programs; otherwise "make run" or
// "make controlplane".
//
// # Usage
//
// [Find] returns the directory, or an error that contains the command to run.
//
// # Considerations
//
// The package depends on the standard library only, so that a program with it builds and starts
// quickly.
package assets
