// Package accessor keeps the connection of one identity, and all connections by key.
//
// Host operators use package clustercache, which owns a [Set] and gives the names here to its
// callers.
//
// The reconciler calls [Set.Reconcile] with what an extension is to connect as. The accessor passes
// that to its lifecycle machine (internal/lifecycle), which decides everything, and carries out the
// effects. Attempts (connect, probe, verify) run in a bounded pool and come back as events. Getters
// load the published snapshot, which never changes, and find there a connection or the reason why
// there is none.
//
// What the driver has to keep, beside the machine's decisions:
//
//   - Locks guard data, not work. A step and its commit effects run under the accessor's mutex, and
//     none of them blocks. What comes after (start attempts, close sockets, notify, log) is queued,
//     and runs without the mutex, in order.
//   - A late answer changes nothing. An answer names its attempt; only the current one counts.
//   - A connection that ended stays dead for ever. Its requests, streams, cached reads and rate
//     limiter waits fail at once with the *NotConnectedError that says why. Its informers end with
//     it.
//   - A newer credential of the same identity replaces the one in use, and the connection goes on.
//     Before that, it is sent nowhere but to the question whose it is.
//   - Clients, cache and cluster.Cluster are built on first use. An idle identity is a state, a
//     token and a place in two schedules.
//   - One member per Interval probes a silent target on behalf of all. At FailureThreshold all of
//     them are disconnected as Unreachable. Then one of those that wait tries the target for all;
//     when it answers, they are woken, spread.
//
// A single error type and getters that never wait follow Cluster API's clustercache.
package accessor
