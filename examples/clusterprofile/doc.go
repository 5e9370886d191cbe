// Package clusterprofile is an example of a host operator that acts at the clusters of an
// inventory: at the API server of each ClusterProfile (multicluster.x-k8s.io, KEP-4322), with no
// Secret if that API server trusts the issuer of this cluster's ServiceAccounts, and otherwise with
// the kubeconfig of a Secret. It writes the name of the cluster into a ConfigMap there.
//
// # Setup
//
// [SetupWithManager] adds the ClusterCache and the controller to a manager. The kind comes with the
// cluster manager that fills the inventory; config/crd.yaml has as much of it as the tests need.
// Apply config/rbac.yaml, and bind its ClusterRole to the operator's ServiceAccount.
//
// # Usage
//
// A ClusterProfile whose status has an access provider of the name [Options].TokenProvider is
// reached as the ServiceAccount [Options].ServiceAccount of its namespace. docs/guide-remote.md
// has what that cluster needs, with the prefix [Options].UsernamePrefix. One with an access
// provider of the name [Options].SecretProvider is reached with the kubeconfig in the Secret that
// [Options].Secrets names; the operator needs list and watch on that Secret. The first access
// provider that is known counts; a change of it is another connection. For example, with the
// default options, at the hub and at the cluster of the ClusterProfile fleet/spoke:
//
//	kubectl --context hub create serviceaccount fleet -n fleet
//	kubectl --context spoke create role fleet -n default \
//	  --verb=create,patch --resource=configmaps
//	kubectl --context spoke create rolebinding fleet -n default --role=fleet \
//	  --user=hub:system:serviceaccount:fleet:fleet
//
// The conditions Connected and Written say what is missing.
//
// # Considerations
//
//   - Who may write the status of a ClusterProfile chooses the server that a token is sent to.
//     [Options].Allow decides which servers may be. A token is worthless at every other server, this
//     cluster's own included.
//   - A Secret is named by the operator's own table, and its kubeconfig has the address. So the
//     status of a ClusterProfile cannot lead a Secret to another server.
//   - The ConfigMap stays when its ClusterProfile is deleted. A finalizer would delete it, and keep
//     the ClusterProfile while its cluster is away: examples/fluxlike has one.
//   - Access providers are usually plugins that the operator is to run. latchkey runs none, since
//     what a plugin prints could be any credential. The condition Connected says what to
//     do instead.
package clusterprofile
