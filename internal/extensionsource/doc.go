// Package extensionsource notifies controllers of changes to extensions, through
// controller-runtime's sources.
//
// # Setup
//
// A [Hub] belongs to one ClusterCache. Code that changes a connection calls [Hub.Changed].
//
// # Usage
//
// [New] returns a source for a controller. [Hub.Listen] delivers the same events to other
// consumers. Both clustercache and fake use this package, so that unit tests receive the same
// events as in a cluster.
//
// # Considerations
//
//   - Notifying never blocks. The pending events of a consumer are a set of extensions: one entry
//     each, with the object last seen. A consumer that hangs costs one entry per extension and
//     nothing else. A consumer that stops is removed.
//   - A map function that panics loses its own event; the panic is logged.
//   - A source can also notify of an episode without success. The source checks for such episodes
//     periodically, and detects one within a twentieth of its length.
package extensionsource
