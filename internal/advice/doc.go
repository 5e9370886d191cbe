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
// The texts are generated from the table of docs/operations.md: change the page, and run make
// generate.
package advice
