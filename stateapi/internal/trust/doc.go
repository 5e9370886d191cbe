// Package trust has the certificate authority that the replicas of a fleet share: whoever has a
// certificate of it is one of them.
//
// # Setup
//
// The authority and its key are in a Secret, which the replicas may read, and nothing else should.
// [New] returns an [Authority], and [Authority.Run] follows the Secret.
//
// # Usage
//
//   - [Authority.NewLeaf] makes a certificate, which is renewed while its authority is.
//   - [Authority.Pool] has the authorities that certificates are verified by.
//
// # Considerations
//
//   - A new authority is trusted by all replicas before one of them has a certificate of it, and
//     the earlier one until it expires. [Times] say when.
//   - The Secret may be another program's, such as cert-manager's. Then the replicas only read it.
//     They trust what it had before for ten minutes more; a replica that starts just after a change
//     does not know of that, until the others have read the change, too.
//   - An authority that is compromised is removed from the Secret: then it is trusted for those ten
//     minutes, by a replica that starts not at all.
package trust
