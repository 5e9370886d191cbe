// Command mutants proves that the tests of the pure machines, and of guards against rare
// interleavings elsewhere, can fail. A patch may name the test that catches it, which then runs
// alone. For each patch under testdata/mutants of their packages, mutants runs the package's tests
// on the patched code. mutants fails if these tests pass.
//
//	go run ./hack/mutants
//
// mutants changes no file in the work tree: the patched files are an overlay of the build.
package main
