// Package controlplane starts a real Kubernetes control plane for tests and for the demo: etcd and
// kube-apiserver with controller-runtime's envtest, and kube-controller-manager on request.
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
// RBAC is on, and the API server signs and verifies ServiceAccount tokens. The API server writes
// every request to an audit log, with which tests prove which user sent which request. All programs
// listen on loopback. A control plane takes seconds to be ready.
package controlplane
