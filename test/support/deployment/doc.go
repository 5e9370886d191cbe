// Package deployment runs the manager of rendered manifests as a process, for tests: with exactly
// the ServiceAccount, the permissions and the flags that the manifests give it.
//
// # Setup
//
// Apply the manifests to a control plane, and build cmd/latchkey.
//
// # Usage
//
//	objects, err := deployment.Decode(manifests)
//	manager, err := deployment.Start(ctx, cp, objects, deployment.Options{Program: "bin/latchkey", Dir: t.TempDir()})
//	...
//	defer manager.Stop()
//	samples, err := manager.Metrics(ctx, token)
//
// # Considerations
//
// No kubelet runs: the process has a token of the ServiceAccount in a kubeconfig instead of a
// mounted one, and it listens on loopback, at ports of its own. [Permissions] and [Used] compare
// what the manifests grant with what the audit log says that the manager used.
package deployment
