// Package ownership lets replicas share a fleet of extensions: each extension is one replica's at a time.
//
// # Setup
//
// Choose an engine, and set it as clustercache.Options.Ownership. Package buckets divides the extensions
// of any kind by their UIDs, with a lease for each part. Package controllersharding follows the labels
// that kubernetes-controller-sharding sets.
//
// # Usage
//
// What an extension's owner is, other replicas learn from a NotConnectedError with the reason NotOwned.
// A controller that receives it returns without a requeue: the extension source has an event when the
// extension comes to this replica. Controllers that use the ClusterCache run on every replica
// (controller.Options.NeedLeaderElection false).
//
// # Considerations
//
//   - Only requests of connections are divided. What a host operator does with its own rights, such as
//     writing status, each replica does for the extensions that it finds connected; the fence of package
//     fence is for those requests.
//   - Engines give an extension up in this order: no new request, those under way ended, handlers
//     returned or 5 s over, then the lease or label released. Another replica takes it after that.
package ownership
