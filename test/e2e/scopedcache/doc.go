// Package scopedcache tests the scoped cache alone, against a real kube-apiserver: what a cache
// does when permissions, kinds and servers come and go. Package e2e tests the rest of latchkey.
//
// A user is an identity with permissions that a test grants and revokes. user.start returns a cache
// that acts as this identity; the cache must leave nothing behind. faults stands between the two
// and answers as the test says.
//
// Time is seldom asserted: tests assert orders and counts, and safety bounds of generous size. What
// was measured is logged; see it with -v.
package scopedcache
