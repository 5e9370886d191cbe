// Package architecture checks that the code follows docs/architecture.md:
//
//   - Packages import only what they may, and the pure packages are pure.
//   - The page names every package, and links every design record.
//   - Every package has a doc.go, with setup, usage and considerations in the public ones.
//   - docs/operations.md has every reason.
//   - The Go code of the README compiles.
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
