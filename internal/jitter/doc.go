// Package jitter advances a backoff with a random number that the caller supplies.
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
