// Package watches keeps what other controllers watch with one extension's connection.
//
// # Setup
//
// A [Registry] belongs to one extension. Whoever owns the connection says [Registry.Connected] and
// [Registry.Disconnected]; a [Connection] hands out informers.
//
// # Usage
//
// [NewWatcher] and [NewContentWatch] say what to watch and which controller is told;
// [Registry.Watch], [Registry.WatchContent] and [Registry.Unwatch] register and end it. A
// registration outlives connections: every new one feeds it again.
//
// # Considerations
//
//   - A registration gives its controller one source, once. The source hands the controller's queue
//     over and then only stands by; the handler is attached to the informers of whatever connection
//     there is. controller-runtime's source.Kind polls on the controller's context instead, and
//     outlives connection and Unwatch.
//   - Informers are held, and stop with the last watch that needs them unless somebody reads them.
//   - Handlers get copies, so what they do to an object they do to nobody else's. A handler that
//     hangs holds up its own events; one that panics loses the event, which is logged and counted.
//   - Registrations of one name take turns, so that a source is given once; no lock is held while a
//     kind is looked up or a controller is called.
package watches
