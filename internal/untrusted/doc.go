// Package untrusted keeps what servers send from being more than anybody reads.
//
// # Setup
//
// None.
//
// # Usage
//
// [Limit] bounds the bodies of answers to short questions, [LimitAll] those of several answers
// together, [Shorten] the texts that are shown to people, and [Quote] the names that are.
//
// # Considerations
//
//   - A server that a tenant chose may answer as much as it likes, and every text of an error may
//     be its.
package untrusted
