// Package clusterapi is Cluster API's clustercache with latchkey's connections. A provider changes
// one import:
//
//	import clustercache "github.com/latchkey-dev/latchkey/adapters/clusterapi"
//
// in place of
//
//	import "sigs.k8s.io/cluster-api/controllers/clustercache"
//
// in the file that calls SetupWithManager. The types here are Cluster API's own, under their names,
// so other files may keep their import, and packages of Cluster API take this ClusterCache.
//
// # Setup
//
// As with Cluster API v1.14: SetupWithManager takes its Options and returns its ClusterCache.
// NewFakeClusterCache and NewFakeEmptyClusterCache are for unit tests.
//
// # Considerations
//
// What is different by design, and what latchkey adds:
//
//   - Errors satisfy errors.Is(err, ErrClusterNotConnected), and errors.As finds latchkey's
//     *NotConnectedError with the Reason.
//   - A changed kubeconfig is taken up in place. A Secret that comes, or an API server that answers
//     again, ends the wait for the next connect, which is 30 to 36 s
//     otherwise.
//   - Clients, readers and configs end with their connection. Cluster API's go on after it.
//   - A Cluster whose Secret or whose key in it is deleted is disconnected, and so is one whose
//     infrastructure is provisioned no more. Cluster API's connections go on until a probe fails.
//   - The kubeconfig's Secret is watched, by its name, at the manager's API server, with the
//     manager's permissions: list and watch. Options.SecretClient must be set, and is not used.
//   - A kubeconfig with exec, an auth provider, references to files, basic auth, a proxy,
//     impersonation, insecure-skip-tls-verify, a server without TLS, or both a token and a
//     certificate is refused, by the name of the field, and so is one with YAML anchors or of more
//     than 128 KiB. Cluster API refuses exec and auth providers.
//   - There is no detour by POD_NAMESPACE, POD_NAME and POD_UID to the API server of the manager's
//     own cluster: a connection always goes to the server of the kubeconfig.
//   - Each probe is a SelfSubjectReview, which shows that the credential is valid, and not a GET of
//     the root.
//   - QPS and Burst are of each cluster, not of each kind and client of it, and must not be
//     negative.
//   - Informers are of the namespaces that are read, and of all namespaces where these are listed
//     or watched. A SelfSubjectAccessReview for each of them follows about once a minute.
//   - The name of the Cluster is added to the User-Agent.
//   - Indexes are of informers that start with their first read. No connect waits for them.
//   - GetRESTConfig returns a copy without a secret. A client that dials by itself, such as
//     client-go's exec and port-forward, needs a kubeconfig with a token: client certificates
//     cannot be in the copy. KubeadmControlPlane reaches etcd by port-forward, with the kubeconfig
//     that it generates, which has a certificate. So its own manager cannot use the adapter.
//   - A Cluster that ClusterFilter excludes, or that loses the label of WatchFilterValue, is
//     disconnected, and the sources deliver that. They also deliver each known Cluster when they
//     start, a Cluster that was deleted, and one that stays disconnected for another reason, or
//     whose access to a kind has changed. The only option of a source is WatchForProbeFailure; with
//     several, mapFunc is called for each.
//   - NewFakeClusterCache with a nil client is a cluster that is not connected.
//   - The metrics are latchkey's; those that begin with capi_cluster_cache_ stay empty.
//
// Package clustercache of latchkey has the details. docs/migrating-from-clustercache.md has all
// names.
package clusterapi
