// Package accessor keeps the connection of one identity, and all of them by key.
//
// # Setup
//
// Host operators use package clustercache, which owns a [Set] and gives the names here to its callers by alias.
//
// # Usage
//
// The reconciler calls [Set.Reconcile] with what an extension is to connect as. The accessor decides what is due
// and returns; connects and probes run in a bounded pool and wake the reconciler when they end. Getters load the
// published snapshot, which never changes, and find there a connection or the reason why there is none.
//
// # Considerations
//
//   - Locks guard data, not work. The accessor's mutex is held for bookkeeping only; what a transition wants done
//     (starting jobs, telling sources, closing sockets, logging) is done after it is released.
//   - A completion that comes late changes nothing: a job acts only if it is still the accessor's current one, a
//     watch event only if its connection lives.
//   - A connection that ended stays dead for ever. Its requests, streams, cached reads and rate limiter waits fail
//     at once with the *NotConnectedError that says why, and informers go with it.
//   - A newer credential of the same identity takes the place of the one in use, under a connection that goes on. It is
//     sent nowhere but to the question whose it is before that.
//   - Clients, cache and cluster.Cluster are built on first use, so an idle identity is a state, a token and a place
//     in two schedules.
//   - A target that is silent is asked by one member per Interval on behalf of all; at FailureThreshold all of
//     them are disconnected as Unreachable. Then one of those that wait tries it for all, and once it answers anybody
//     they are woken, spread.
//
// The state machine, with its single error and getters that never wait, follows Cluster API's clustercache.
package accessor
