// Package architecture checks that the code is built as docs/architecture.md says: which package
// may import which, that every package is on that page and has a doc.go that tells setup, usage and
// considerations, and that the README's Go compiles.
//
// # Setup
//
// None; "go test ./internal/architecture".
//
// # Usage
//
// A new package is entered in the layers of the test, with what it may import.
//
// # Considerations
//
// Only production code is checked. Tests may import what they like.
package architecture
