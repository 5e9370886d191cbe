// Package extensionsource tells controllers, through controller-runtime's sources, what happens to
// extensions.
//
// # Setup
//
// A [Hub] belongs to one ClusterCache. Whoever changes connections calls [Hub.Changed].
//
// # Usage
//
// [New] makes a source for a controller; [Hub.Listen] is the same for other consumers. Both
// clustercache and fake are built on it, so that unit tests hear what they would hear in a cluster.
//
// # Considerations
//
//   - Telling never blocks: what is pending for a consumer is a set of extensions, one entry each,
//     with the object last seen. A consumer that hangs costs an entry per extension and nothing
//     else; one that stops is forgotten.
//   - A map function that panics loses its own event; the log says so.
//   - That nothing happens is told too, if asked for: an episode without success is noticed by
//     looking every now and then, within a twentieth of its length.
package extensionsource
