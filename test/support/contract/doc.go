// Package contract has the tests that every clustercache.ClusterCache must pass: the real one,
// against a real API server, and the fake.
//
// # Setup
//
// A [World] connects, disconnects and deletes extensions in the way that the implementation under
// test needs.
//
// # Usage
//
// [Test] runs the tests that hold for every implementation. [TestProbeFailure] runs the test that
// needs failing probes.
//
// # Considerations
//
//   - Test a new guarantee of the interface here first, so that unit tests with the fake stay
//     meaningful.
package contract
