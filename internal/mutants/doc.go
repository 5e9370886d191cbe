// Command mutants shows that the tests of the pure machines can fail. For each patch under
// testdata/mutants of their packages, it runs the package's tests on the patched code, and fails if
// they pass.
//
//	go run ./internal/mutants
//
// It changes nothing in the work tree: the patched files are an overlay of the build.
package main
