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
//     again, ends the wait for the next connect, which is 30 s otherwise.
//   - Clients, readers and configs end with their connection. Cluster API's go on after it.
//   - The kubeconfig's Secret is watched, by its name, at the manager's API server, with the
//     manager's permissions: list and watch. Options.SecretClient must be set, and is not used.
//   - A kubeconfig with exec, an auth provider, references to files, basic auth, a proxy,
//     impersonation or insecure-skip-tls-verify is refused, by the name of the field. Cluster API
//     refuses the first two.
//   - There is no detour by POD_NAMESPACE, POD_NAME and POD_UID to the API server of the manager's
//     own cluster: a connection always goes to the server of the kubeconfig.
//   - Each probe is a SelfSubjectReview, which shows that the credential is valid, and not a GET of
//     the root.
//   - QPS and Burst are of each cluster, not of each kind and client of it.
//   - Indexes are of informers that start with their first read. No connect waits for them.
//   - GetRESTConfig returns a copy without a secret. A client that dials by itself, such as
//     client-go's exec and port-forward, needs a kubeconfig with a token: client certificates cannot
//     be in the copy.
//   - A Cluster that ClusterFilter excludes, or that loses the label of WatchFilterValue, is
//     disconnected, and the sources deliver that. They also deliver each known Cluster when they
//     start, a Cluster that was deleted, and one that stays disconnected for another reason.
//   - The metrics are latchkey's; those that begin with capi_cluster_cache_ stay empty.
//
// Package clustercache of latchkey has the details. docs/migrating-from-clustercache.md has all
// names.
package clusterapi
