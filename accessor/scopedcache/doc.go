// Package scopedcache is a cache.Cache that keeps one informer per scope: per kind, representation and namespace.
//
// # Setup
//
// [New] has the signature of cache.NewCacheFunc and takes the options of controller-runtime's cache, but for
// namespaces: which ones are cached follows from what is read.
//
// # Usage
//
// Read and watch as with any controller-runtime cache. An identity that may list a kind in one namespace only
// reads it there without any configuration, because a read in a namespace uses an informer of that namespace
// (or one of all namespaces, if somebody has asked for that and it works). [Cache.Hold] gives an
// informer by [Scope], and tells how it does.
//
// # Considerations
//
//   - Each scope is a controller-runtime cache of its own, restricted to that scope: little memory beside its
//     informer, and all of client-go's care. Scopes share no lock, so a kind that hangs delays no other.
//   - The first read of a scope waits for its informer on the informer's done-channel, and ends early when the
//     API server says that the identity may not list or watch: the caller gets that Forbidden, not a timeout.
//     The informer goes on trying.
//   - A right that is revoked while a watch runs is noticed when the API server ends that watch. Scopes stop
//     with the cache, or with their last holder if nobody has read them.
package scopedcache
