// Package controlplane starts a real Kubernetes control plane for tests and for the demo: etcd and
// kube-apiserver by controller-runtime's envtest, kube-controller-manager on request.
//
// # Setup
//
// "make controlplane" builds the programs once; subpackage assets finds them.
//
// # Usage
//
//	cp, err := controlplane.Start(ctx, controlplane.Options{})
//	...
//	defer cp.Stop()
//	admin, err := client.New(cp.Config(), client.Options{})
//
// # Considerations
//
// RBAC is on, ServiceAccount tokens are signed and checked, and every request is written to an
// audit log, which is how tests prove who asked for what. Everything listens on loopback. A control
// plane takes about 3 s to be ready and 300 MB of memory.
package controlplane
