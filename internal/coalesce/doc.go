// Package coalesce tells subscribers what has changed, once for many changes.
//
// # Setup
//
// The zero [Hub] is ready to use.
//
// # Usage
//
// [Hub.Put] reports a change to each [Subscription]. A subscriber waits for Signal, and takes all
// changes at once.
//
// # Considerations
//
//   - Put never blocks. A subscription keeps one value for each key, the newest, so a subscriber
//     that hangs costs one value per key and nothing else.
//   - The idea is that of client-go's workqueue, without retries, order or rates.
package coalesce
