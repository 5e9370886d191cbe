// Package architecture checks that the code follows docs/architecture.md: imports between packages,
// an entry of every package on that page, and a doc.go with setup, usage and considerations in
// every package. The tests also check that the Go code of the README compiles.
//
// # Setup
//
// None; "go test ./internal/architecture".
//
// # Usage
//
// Enter a new package in the layers of the test, with the packages that it may import.
//
// # Considerations
//
// The tests check production code only. Test files may import any package.
package architecture
