// Package ownership says which extensions are this replica's. At any time an extension has at most
// one replica.
//
// # Setup
//
// Choose an engine, and set it as clustercache.Options.Ownership. With [Leader], the replica that
// wins the leader election has all extensions. With the other engines, replicas share them. Package
// buckets divides the extensions of any kind by their UIDs, with a lease for each part. Package
// controllersharding follows the labels that kubernetes-controller-sharding sets.
//
// # Usage
//
// With Leader, nothing else changes: the controllers run where the manager leads. Clients that were
// obtained before the end of a lease return a NotConnectedError with the reason NotLeading.
//
// With an engine that shares, calls for an extension that this replica does not have return a
// NotConnectedError with the reason NotOwned. A controller then returns without a requeue, and does
// not write the status: the replica that has the extension does. When this replica gets the
// extension, the extension source sends an event. Controllers that use the ClusterCache run on
// every replica. A manager without leader election runs them like that. If the manager has leader
// election for other reasons, set controller.Options.NeedLeaderElection to false for each of these
// controllers.
//
// # Considerations
//
//   - Replicas that share must not run beside a leader. If the fleet had a leader before, use
//     WithLeaderLease.
//   - Only the requests of connections are divided and fenced. A host operator also writes with its
//     own permissions, for example status: use resourceVersion preconditions there.
//   - Engines give up an extension in this order: no new request starts, requests under way end,
//     handlers return or 5 s are over, the lease or label is released. Then another replica takes
//     the extension. When a lease is lost, requests end with the lease. This replica waits for
//     handlers in the same way, but the next replica does not wait for this one.
package ownership
