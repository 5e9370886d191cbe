// Package hostcode calls functions of the host operator, which may panic.
//
// # Setup
//
// None.
//
// # Usage
//
// [Call] calls a function and turns a panic into a [PanicError].
//
// # Considerations
//
//   - The value of a panic can be a secret, and it can name what the tenant that caused it must not
//     learn. Only the log has the value; the text of a PanicError goes into states and errors.
package hostcode
