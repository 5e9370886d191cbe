// Package architecture checks that the code follows docs/architecture.md:
//
//   - Every package is in one row of the page's tables, imports run down these rows, and the pure
//     packages are pure.
//   - The page lists every module of its own, and links every design record.
//   - Every package has a doc.go, with setup, usage and considerations in the public ones.
//   - docs/operations.md has every reason.
//   - The Go code of the pages compiles, every link leads somewhere, and no block has a prompt.
//   - Outside of the lifecycle machine nothing decides why an extension is not connected.
//   - Comments are no wider than 100 columns.
//
// # Setup
//
// None; "go test ./test/support/architecture".
//
// # Usage
//
// Write a row for a new package into docs/architecture.md: on the floor of its top folder, above
// all packages that it imports.
//
// # Considerations
//
// The tests check production code only. Test files may import any package.
package architecture
