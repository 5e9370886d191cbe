// Package strangers keeps those who prove nothing from using up what those need who have proved
// themselves.
//
// # Setup
//
// [New] returns a [Gate], which is shared by all requests to a server.
//
// # Usage
//
// Ask [Gate.Allow] before a token is reviewed, and tell the gate of the result by [Gate.Accepted]
// and [Gate.Refused].
//
// # Considerations
//
//   - A token that was accepted within an hour has a rate of its own. All other tokens share one
//     rate, of which a single address has half: so a flood from one address leaves room for a first
//     sign-in from another. Behind a proxy all have one address; headers such as X-Forwarded-For
//     are not trusted.
//   - Tokens are kept as hashes only.
package strangers
