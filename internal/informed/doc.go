// Package informed reads a cache from the informers that feed its handlers.
//
// # Setup
//
// [NewReader] takes a manager's cache.
//
// # Usage
//
// [Reader] is a client.Reader. Readable says whether a kind may be read.
//
// # Considerations
//
//   - A scopedcache may have several informers of a kind. One that handlers do not hear of may be
//     behind, or ahead, of them.
//   - A cache that is no scopedcache has one informer of a kind, and reads as it does.
package informed
