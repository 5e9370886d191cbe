// Package buckets is an engine of package ownership that divides the extensions by their UIDs.
//
// # Setup
//
//	engine, err := buckets.New(config, buckets.Options{Namespace: "my-namespace", Name: "my-operator"})
//	cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
//		Ownership: engine, Client: clustercache.ClientOptions{UserAgent: "my-operator"},
//	}, controller.Options{})
//	err = mgr.Start(engine.HandOver(ctx))
//
// The host operator needs get, list, watch, create, update and delete on leases in that namespace.
//
// # Usage
//
// The fleet is divided into buckets. Each bucket has a Lease, which a replica holds by client-go's
// leader election, and a fence (package fence). Which replica is to hold which bucket follows from
// the replicas that are alive, by rendezvous hashing with a bound: all have about the same number,
// and one that joins or ends moves no more than its part. A bucket moves when its replica has given
// it up: at most two at a time for each replica, and the next ones when the extensions of the
// former are connected again.
//
// Replicas divide a fleet in one way: all hold the Lease of the fleet together, whose holder is
// that way, such as "64 buckets of ClusterExtension.latchkey.dev". The fence of each bucket is
// within that of the fleet (fence.Fence.Within), so that no replica with another number of buckets
// acts beside them, also when Leases are deleted. Run ends with an error if the fleet is divided in
// another way, or if an annotation of that Lease is changed to say so.
//
// Buckets are ranges of the hash that Kubernetes' sharded list and watch (KEP-5866) uses.
//
// # Considerations
//
//   - Each bucket costs a write to the API server in each RetryPeriod, whatever the number of
//     replicas: 64 buckets and 15 s are 30 writes a second.
//   - Each replica's cache has the objects of all extensions. Their connections, informers and what
//     those read are only its share.
//   - The number of buckets cannot be changed while a replica runs.
//   - A fleet's Lease that is new must expire once before a replica acts: the first start of a
//     fleet takes LeaseDuration and some seconds longer. So does what follows a deletion of that
//     Lease.
//   - The Lease of the fleet costs up to three requests for each replica in each RetryPeriod: a
//     write that another replica's has overtaken, a read, and a write.
//   - HandOver takes time before the manager begins to stop. Give the Pod a
//     terminationGracePeriodSeconds of more than Options.HandOverTimeout and the manager's
//     GracefulShutdownTimeout together, whose defaults are 20 s and 30 s.
//   - A fleet that had one leader before must not have both at a time: see
//     ownership.WithLeaderLease.
//   - A replica that ends without giving up its buckets leaves them without one for LeaseDuration.
//   - Who may write the Leases decides which replica serves what, and can keep extensions from
//     being served, or let two replicas serve one until both have seen it. Let nothing but the host
//     operator write Leases in that namespace.
//   - ForOrdinal needs no Leases, and has no fences: the StatefulSet's promise takes their place.
package buckets
