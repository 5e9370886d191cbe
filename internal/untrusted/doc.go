// Package untrusted is the policy on what servers send: it bounds bodies, texts and names, and
// decides which part of an error is shown.
//
// # Setup
//
// None.
//
// # Usage
//
// [Limit] bounds the bodies of answers to requests whose answer is short. [LimitAll] bounds the
// bodies of several answers together. [Shorten] bounds texts that people read, and [Quote] names
// that people read. [StatusText] and [Show] replace a server's text. [IsPresentable] checks names.
// [Shorten], [Printable] and [Error] replace characters that steer a terminal, where texts enter,
// and [Terminal] does so again where they are printed.
//
// # Considerations
//
//   - A server that a tenant chose may send answers of any size, and may be the source of the text
//     of any error.
package untrusted
