// Package watches keeps the watches of other controllers with one extension's connection.
//
// # Setup
//
// A [Registry] belongs to one extension. The owner of the connection calls [Registry.Connected] and
// [Registry.Disconnected]. A [Connection] provides informers.
//
// # Usage
//
// [NewWatcher] and [NewContentWatch] describe what to watch and which controller receives requests.
// [Registry.Watch], [Registry.WatchContent] and [Registry.Unwatch] register and end a watch. A
// registration continues across connections: every new connection feeds it again.
//
// # Considerations
//
//   - A registration gives its controller exactly one source. The source only hands over the
//     controller's queue. The handler is then attached to the informers of the current connection.
//     controller-runtime's source.Kind is not used: it polls on the controller's context, and so
//     continues after the end of the connection and after Unwatch.
//   - A watch holds its informers. An informer stops after the last watch that needs it, unless
//     readers use it.
//   - Handlers receive copies, so a handler that changes an object affects no other handler. A
//     handler that hangs delays only its own events. A handler that panics loses the event, and the
//     panic is logged and counted.
//   - Registrations of one name run one after the other, so that a controller gets a source only
//     once. No lock is held during the lookup of a kind or a call of a controller.
package watches
