// Package untrusted bounds the size of data and texts that come from servers.
//
// # Setup
//
// None.
//
// # Usage
//
// [Limit] bounds the bodies of answers to requests whose answer is short. [LimitAll] bounds the
// bodies of several answers together. [Shorten] bounds texts that people read, and [Quote] names
// that people read.
//
// # Considerations
//
//   - A server that a tenant chose may send answers of any size, and may be the source of the text
//     of any error.
package untrusted
