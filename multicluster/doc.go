// Package multicluster is a provider for multicluster-runtime: each connected extension is one of
// its clusters. A reconciler that was written for many clusters then runs over many identities, at
// one API server or at several.
//
// # Setup
//
// New makes a Provider of a ClusterCache. The package does not import multicluster-runtime. The
// Provider is generic instead, and with the types of that project it is their Provider and
// ProviderRunnable:
//
//	provider, err := multicluster.New[mc.ClusterName, mc.Aware](cc, multicluster.Options[mc.ClusterName]{
//		ErrNotFound: mc.ErrClusterNotFound,
//	})
//	manager, err := mcmanager.WithMultiCluster(mgr, provider)
//
// mgr is controller-runtime's manager, with which cc was set up.
//
// Here mc is sigs.k8s.io/multicluster-runtime/pkg/multicluster. In versions whose names are
// strings, the first type is string.
//
// # Usage
//
// The manager calls Start, which engages each extension that is connected, and those that connect
// later, with a context that ends when the connection does. A reconnect engages anew. Get returns
// the cluster of a name. A name is the extension's key, NAMESPACE/NAME, or NAME for a
// cluster-scoped kind; Options has the mapping.
//
// # Considerations
//
//   - A cluster is what GetCluster of the ClusterCache returns: it acts as the extension's
//     identity, and ends with its connection.
//   - Get of an extension that is not connected returns ErrNotFound, so that multicluster-runtime
//     drops the request. After a reconnect the sources of the new cluster deliver all objects.
//   - Engage is called for one connection of an extension at a time. If it blocks, only this
//     extension waits for the provider, also for its next connection. If it returns an error or
//     panics, its context ends, and it is called again after a second, and after up to a minute
//     later on.
//   - Engage is called for every connected extension soon after the start, from one goroutine each.
//     multicluster-runtime's controllers start the sources of one cluster after the other, and wait
//     for the first list of each.
//   - An identity that may not list a kind gets no events of it until the permission is there. Its
//     other kinds, and other clusters, are not affected. ConnectionState.Scopes says what is
//     missing.
//   - What is deleted while an extension is not connected causes no request after a reconnect,
//     unlike with Watch of the ClusterCache: use finalizers, or compare with what is there.
//   - With ownership.Leader, or none, the leader engages all. With another engine each replica
//     engages its share, so multicluster-runtime's manager must run without leader election.
//   - IndexField adds an index to each connection. Such a connection does not share the informers
//     of its ServiceAccount with others: prefer CacheOptions.Indexes of the ClusterCache, which all
//     connections have from the beginning.
package multicluster
