// Package replay passes the events of successive informers to one handler as if one informer had
// sent them all.
//
// # Setup
//
// [New] returns a [Feed] for a handler.
//
// # Usage
//
// Register the [Source] that [Feed.Begin] returns as the event handler of an informer. Call
// [Source.EmitMissingDeletes] when the informer has delivered all its objects. Call [Feed.Begin]
// again for the next informer.
//
// # Considerations
//
//   - An informer ends with its connection, its permission or its kind. The next informer reports
//     no deletion of an object that disappeared in between, because it never knew the object. A
//     Feed therefore records which objects its handler knows. The Feed keeps this record when an
//     informer ends, and emits deletions of the objects that the next informer lacks.
//   - The record holds what handlers need to find the owner of an object: name, UID, labels and
//     owner references. The record holds no content, because the next identity may be another, or
//     may have lost the permission to read the content. The record holds no annotations, because
//     kubectl keeps content in them.
//   - The record holds only objects that the handler received. An object that the informer stored,
//     but did not deliver before the informer ended, is unknown to the handler and not recorded.
package replay
