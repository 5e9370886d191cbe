// Package peers lets the replicas of a fleet hear each other: who has which extensions.
//
// # Setup
//
// Each replica holds a Lease of its own, whose holder says who it is, and where it serves its own
// states to the others. [New] returns the [Peers] of a replica; [Peers.Run] keeps that Lease, and
// follows those of the others.
//
// # Usage
//
// A [Listener] receives what each peer has.
//
// # Considerations
//
//   - Those who may write Leases decide where this replica connects to, and who is a member that is
//     not heard, and nothing else: what answers there must prove, by a certificate of the fleet,
//     that it is the member whose Lease it is. This replica's own certificate is sent after that
//     (TLS 1.3), and is of no use to others.
//   - A peer is heard as long as its stream brings something: each second at least a bookmark. One
//     that is silent is connected anew.
package peers
