// Package members decides which namespaces are in a set: which informers the set has, and which of
// them feed its handlers. The package is pure: [Machine] receives what is known and returns what to
// do.
//
// # Usage
//
// Call [Machine.Step] whenever something may have changed, with all that is known now. Do what it
// returns, in order, and call it again until it returns nothing. [Machine.Outcome] then says what
// has become of the set, and when to look again.
//
// # Considerations
//
//   - A namespace leaves a set of labels with deletions, as an object leaves a watch with a
//     selector. A namespace whose permission is revoked stays: what handlers know of it is kept,
//     because the permission may come back. Only a namespace that does not exist any more is
//     deleted with its objects.
//   - While the identity may list and watch everywhere, one informer has all namespaces. The two
//     forms never feed handlers at the same time. So no event comes twice.
//   - An informer may be Synced and far behind. One whose version is earlier than what handlers
//     have received does not feed them, and handlers wait for one that takes over for ten seconds
//     at most.
//   - What is not known changes nothing.
package members
