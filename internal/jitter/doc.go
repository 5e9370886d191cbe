// Package jitter takes the delays of a backoff with a random number of the caller's.
//
// # Setup
//
// None.
//
// # Usage
//
// [Step] is wait.Backoff.Step for code that must not read random numbers itself, such as a state
// machine whose steps can be repeated.
//
// # Considerations
//
// None.
package jitter
