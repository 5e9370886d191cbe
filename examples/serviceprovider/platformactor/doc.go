// Package platformactor plays the platform of service providers, for tests and the demo: the
// scheduler that grants ClusterRequests, and the cluster provider that grants AccessRequests with
// real ServiceAccounts, Roles and tokens.
//
// # Setup
//
// [New] takes the platform cluster, and the clusters to give access to.
//
// # Usage
//
// [Actor.Run] answers requests until its context ends. The fields of [Actor] say which requests to
// hold back or deny.
//
// # Considerations
//
//   - An Actor looks at all requests every few milliseconds. A platform would watch them.
//   - Every AccessRequest has a ServiceAccount of its own, in the namespace "access". A rotated
//     token is of the same ServiceAccount.
package platformactor
