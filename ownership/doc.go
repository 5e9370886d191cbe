// Package ownership says which extensions are this replica's: each extension is one replica's at a
// time.
//
// # Setup
//
// Choose an engine, and set it as clustercache.Options.Ownership. With [Leader] one replica at a
// time has all extensions: that of the leader election. With the others replicas share them.
// Package buckets divides the extensions of any kind by their UIDs, with a lease for each part.
// Package controllersharding follows the labels that kubernetes-controller-sharding sets.
//
// # Usage
//
// On a replica that shares, and does not have an extension, calls for it return a NotConnectedError
// with the reason NotOwned. A controller returns then, without a requeue and without writing the
// status: the replica that has the extension does that. The extension source has an event when the
// extension comes to this replica.
//
// Controllers that use the ClusterCache run on every replica. A manager without leader election
// runs them so. If the manager has leader election for other reasons, set
// controller.Options.NeedLeaderElection to false for each of them.
//
// # Considerations
//
//   - A fleet that had one leader before must not have a leader and replicas that share at the same
//     time: see WithLeaderLease.
//   - Only the requests of connections are divided and fenced. What a host operator does with its
//     own permissions, such as writing status, is not: use resourceVersion preconditions there.
//   - Engines give an extension up in this order: no new request, those under way ended, handlers
//     returned or 5 s over, then the lease or label released. Another replica takes it after that.
//     When a lease is lost, requests end with the lease, and handlers are waited for in the same
//     way, but another replica does not wait for them.
package ownership
