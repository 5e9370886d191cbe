// Package statechanges reports which extensions have another state than before.
//
// # Setup
//
// A [Hub] belongs to one ClusterCache. Code that changes a state calls [Hub.Changed].
//
// # Usage
//
// [Hub.Subscribe] calls a function with the keys of the extensions whose states changed. Both
// clustercache and fake use this package, so that unit tests receive the same calls as in a
// cluster.
//
// # Considerations
//
//   - Reporting never blocks. The pending changes of a subscriber are a set of keys, so a
//     subscriber that hangs costs one key per extension and nothing else.
//   - A change carries no state: subscribers read the state after the call, and so never miss the
//     newest one.
package statechanges
