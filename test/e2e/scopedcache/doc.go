// Package scopedcache tests the scoped cache alone, against a real kube-apiserver. The tests grant
// and revoke permissions, install and delete kinds, and stop and restart API servers. Package e2e
// tests the rest of latchkey.
//
// A user is an identity with permissions that a test grants and revokes. user.start returns a cache
// that uses this identity. The cache must leave no goroutine behind. A faultyServer is a proxy
// between the cache and the API server. The test decides which requests the proxy answers itself,
// and how.
//
// Tests seldom assert times. They assert order and counts, and generous safety bounds. Tests log
// the measured times; run them with -v to see the log.
package scopedcache
