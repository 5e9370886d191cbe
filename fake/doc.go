// Package fake provides a [clustercache.ClusterCache] for unit tests of controllers that use
// latchkey.
//
// # Setup
//
// [NewFakeCache] returns a Cache with one extension, connected with a client of the test, usually
// controller-runtime's fake client. [NewFakeEmptyCache] returns a Cache without extensions;
// [Cache.Connect] adds them.
//
// # Usage
//
// Pass the Cache to the code under test. Then simulate events of a cluster: [Cache.Connect],
// [Cache.Disconnect], [Cache.FailProbe] and [Cache.PassProbe] change the state of an extension.
// [Cache.Forbid], [Cache.ForbidExcept], [Cache.ForbidListAndWatch] and [Cache.Allow] take and give
// permissions to read, [Cache.ForbidWrites] and [Cache.AllowWrites] permissions to write.
// [NewController] returns a controller that records the requests of sources and watches.
// Sources deliver to a real queue. Watches call their handlers for changes of the client's objects.
// [Cache.Watches] returns the registered watches. Connections have the host [Target], and
// FailProbe leaves [ErrProbe] in the state.
//
// # Considerations
//
//   - The fake passes the same contract tests as the real ClusterCache (test/support/contract):
//     errors and their reasons, handles that fail after a disconnect, watches that resume after a
//     reconnect, events that coalesce.
//   - The same code as in the real ClusterCache feeds watches. Watches receive changes if the
//     client is a client.WithWatch, as controller-runtime's fake client is. With any other client,
//     watches receive only the objects that exist when the watch starts.
//   - Reads go directly to the client. There is no RBAC beyond Forbid, and all kinds of the
//     client's scheme are served. To test RBAC or other behavior of an API server, use a real API
//     server.
//   - Sources and watches run until their controller's context is done, or until [Cache.Close].
package fake
