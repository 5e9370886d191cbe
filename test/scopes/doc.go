// Package scopes tests scopedcache alone, against a real kube-apiserver: what a cache does when rights, kinds and
// servers come and go. Package test has what the rest of latchkey makes of it.
//
// # Setup
//
// TestMain starts a control plane; "make controlplane" builds it.
//
// # Usage
//
// A user is an identity with rights that a test grants and revokes. user.start gives a cache that acts as this identity; it
// must leave nothing behind. faults stands between the two and answers as the test says.
//
// # Considerations
//
//   - Package time is seldom in bounds: what is asserted are orders and counts, and safety bounds of generous size. What was
//     measured is logged; see it with -v.
package scopes
