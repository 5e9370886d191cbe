// Package replay makes one informer after another look like one to a handler.
//
// # Setup
//
// [New] makes a [Feed] for a handler.
//
// # Usage
//
// Add what [Feed.Begin] returns to an informer, and call [Source.TellMissing] when the informer has
// told its handlers of everything. For the next informer, begin again.
//
// # Considerations
//
//   - Informers come and go: with a connection, with a right, with a kind. What was deleted in
//     between no informer tells of, for the next one does not know that it was there. So a Feed
//     knows what its handler was told of, remembers that when an informer ends, and tells of what
//     the next one has not got.
//   - It remembers what handlers find the owner of an object by: name, UID, labels, owners. No
//     content, and no annotations, in which kubectl keeps content too; for the next identity may be
//     another, or may have lost the right to see more.
//   - What an informer has in its store and did not deliver when it ended the handler does not
//     know, so it is not remembered: what counts is what was told.
package replay
