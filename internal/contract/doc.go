// Package contract is the tests that every clustercache.ClusterCache must pass: the real one,
// against a real API server, and the fake.
//
// # Setup
//
// A [World] makes things happen in the way that the implementation under test needs.
//
// # Usage
//
// [Test] runs what holds everywhere, [TestProbeFailure] what needs probes that fail.
//
// # Considerations
//
//   - A new promise of the interface is tested here first, so that unit tests with the fake keep
//     meaning something.
package contract
