// Package statediagram draws the state diagrams of docs/architecture.md. The diagrams show the
// transitions that the explorations of the pure machines found.
package statediagram
