// Package advice says what to do about a reason, in the words of docs/operations.md.
//
// # Setup
//
// None.
//
// # Usage
//
// [For] returns the text for a reason of a connection.
//
// # Considerations
//
// The texts are those of docs/operations.md, without its marks. A test of package architecture
// compares them. A change of one is a change of both.
package advice
