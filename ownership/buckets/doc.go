// Package buckets is an engine of package ownership that divides the extensions by their UIDs.
//
// # Setup
//
//	engine, err := buckets.New(config, buckets.Options{Namespace: "my-namespace", Name: "my-operator"})
//	cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
//		Ownership: engine,
//		Client:    clustercache.ClientOptions{UserAgent: "my-operator"},
//	}, controller.Options{})
//	err = mgr.Start(engine.HandOver(ctx))
//
// The host operator needs get, list, watch, create, update and delete on leases in that namespace.
//
// # Usage
//
// The fleet is divided into buckets. Each bucket has a Lease, which a replica holds by client-go's
// leader election, and a fence (package fence). Rendezvous hashing with a bound says which of the
// replicas that are alive is to hold which bucket: no two differ by more than one bucket, and a
// replica that joins or ends moves no more than its part. A bucket moves when its replica has given
// the bucket up. Each replica gives up at most two buckets at a time, and the next ones when the
// extensions of these are connected again.
//
// All replicas divide a fleet in the same way. Together they hold the Lease of the fleet, whose
// holder names that way, for example "64 buckets of ClusterExtension.latchkey.dev". Requests need
// the term of the bucket's Lease and that of the fleet's. So no replica with another number of
// buckets acts beside the others, also when Leases are deleted. If the fleet is divided in another
// way, or an annotation of the fleet's Lease is changed to say so, Run ends with an error.
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
//   - A new Lease of a fleet must expire once before a replica acts. So the first start of a fleet
//     takes LeaseDuration and some seconds longer. If that Lease is deleted while replicas run,
//     they give up all extensions, and wait in the same way.
//   - The Lease of the fleet costs up to three requests for each replica in each RetryPeriod: a
//     write that fails because another replica wrote first, a read, and a write.
//   - HandOver takes time before the manager begins to stop. Give the Pod a
//     terminationGracePeriodSeconds of more than Options.HandOverTimeout and the manager's
//     GracefulShutdownTimeout together, whose defaults are 20 s and 30 s.
//   - Replicas that share must not run beside a leader. If the fleet had a leader before, use
//     ownership.WithLeaderLease.
//   - If a replica ends without giving up its buckets, no replica has them for LeaseDuration.
//   - A user who may write the Leases decides which replica serves what: extensions can stay
//     without a replica, or have two until both have seen the change. Let nothing but the host
//     operator write Leases in that namespace.
//   - ForOrdinal needs no Leases, and has no fences: it relies on the StatefulSet, which never runs
//     two Pods of one ordinal.
package buckets
