// Package testenv starts the control plane that the tests of a package share, and finds the
// goroutines that a test leaves.
package testenv
