// Package testenv starts the control plane that the tests of a package share, and detects the
// goroutines that a test leaks.
package testenv
