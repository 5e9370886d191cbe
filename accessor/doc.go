// Package accessor maintains the connections of identities, one per extension, by key.
//
// Host operators use package clustercache, which owns a [Set] and exports the names in this package
// to its callers.
//
// The reconciler calls [Set.Reconcile] with the identity that an extension connects as. The
// accessor passes that to its lifecycle machine (internal/lifecycle), which makes every decision,
// and carries out the effects. Attempts (connect, probe, verify) run in a bounded pool, and their
// results return as events. Getters load the published snapshot, which is immutable. The snapshot
// holds a connection, or the reason why there is none.
//
// Besides carrying out the machine's decisions, the driver guarantees:
//
//   - Locks guard data, not work. A step and its commit effects run under the accessor's mutex, and
//     none of them blocks. The after effects (start attempts, close sockets, notify, log) are
//     queued, and run without the mutex, in order.
//   - A late answer changes nothing. An answer names its attempt, and only the answer of the
//     current attempt counts.
//   - A connection that has ended never resumes. Its requests, streams, cached reads and rate
//     limiter waits fail at once with the *NotConnectedError that holds the reason. Its informers
//     end with the connection.
//   - A newer credential of the same identity replaces the one in use, and the connection
//     continues. Until then, the only request with the newer credential is the one that asks which
//     identity it belongs to.
//   - Clients, cache and cluster.Cluster are built on first use. An idle identity costs a state, a
//     token and an entry in two schedules.
//   - One member per Interval probes a silent target on behalf of all. At FailureThreshold all
//     members are disconnected as Unreachable. From then on, one of the waiting members tries the
//     target on behalf of all. When the target answers, the waiting members connect again, spread
//     over time.
//
// The single error type and the getters that never block follow Cluster API's clustercache.
package accessor
