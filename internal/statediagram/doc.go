// Package statediagram draws what the explorations of the pure machines found, as the state
// diagrams of docs/architecture.md.
package statediagram
