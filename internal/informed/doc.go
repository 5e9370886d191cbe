// Package informed reads a cache from the informers that feed its handlers.
//
// # Setup
//
// [NewReader] takes a manager's cache.
//
// # Usage
//
// [Reader] is a client.Reader. Readable reports whether a kind may be read.
//
// # Considerations
//
//   - A scopedcache may have several informers of a kind. An informer that does not feed the
//     handlers may be behind, or ahead of, the events that the handlers received.
//   - Any other cache has one informer of a kind. A Reader of such a cache calls the cache
//     directly.
package informed
