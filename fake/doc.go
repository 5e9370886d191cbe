// Package fake is a [clustercache.ClusterCache] for the unit tests of people who use latchkey.
//
// # Setup
//
// [NewFakeCache] has one extension, connected with the client that the test gives, usually
// controller-runtime's fake client. [NewFakeEmptyCache] has none; [Cache.Connect] adds them.
//
// # Usage
//
// Give the Cache to the code under test. Then let things happen: [Cache.Connect],
// [Cache.Disconnect], [Cache.FailProbe] and [Cache.PassProbe] do to an extension what a cluster
// would. Sources deliver to a real queue, watches feed their handlers with what happens to the
// objects of the client, and [Cache.Watches] says what is watched.
//
// # Considerations
//
//   - It keeps the contract of the real one, by the same tests (internal/contract): errors and
//     their reasons, handles that are dead after a disconnect, watches that come back, events that
//     coalesce.
//   - Watches are fed by the same code as the real ones. They hear of changes if the client is a
//     client.WithWatch, as controller-runtime's fake client is; with another one, only of what
//     there is when they begin.
//   - Reads are as live as the client's. Nothing is forbidden, and everything that the client's
//     scheme knows is served: what depends on RBAC or on an API server is for a test with a real
//     one.
//   - Sources and watches run until their controller's context is done, or [Cache.Close].
package fake
