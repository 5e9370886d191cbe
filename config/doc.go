// Package config holds the YAML that a cluster needs, for kubectl and, embedded, for programs.
//
// # Setup
//
//	kubectl apply -f config/crd -f config/rbac -f config/admission
//	kubectl create clusterrolebinding latchkey-operator --clusterrole=latchkey-operator --serviceaccount=<namespace>:<name>
//
// # Usage
//
// crd has our own ClusterExtension, rbac what a host operator needs for itself, admission the policy that lets
// nobody name a ServiceAccount that they may not act as. Programs read the same from [Manifests].
//
// # Considerations
//
// Leave crd out where Operator Lifecycle Manager is installed. A cluster-scoped extension without the admission
// policy, or the like, lets whoever may write it act as any ServiceAccount of the cluster.
package config
