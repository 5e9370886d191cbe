// Package scopedcache is a cache.Cache that lives with RBAC: informers start when the identity may list and watch, stop when it
// may not any more, and are healed when it may again; reads always end, with the truth. It does not need the rest of latchkey.
//
// # Setup
//
// [New] is a cache.NewCacheFunc. In any operator:
//
//	ctrl.NewManager(config, ctrl.Options{NewCache: scopedcache.New})
//
// An operator that lacks rights on some of its kinds then starts and stays up: its controllers of the others work, and those of
// these kinds begin when the rights are granted. With controller-runtime's own cache it ends after CacheSyncTimeout. (So it
// does here if a kind fails otherwise: errors may pass, and are waited for no longer than that.) The log says what is Forbidden
// or not served; [Options] Observe and [Cache] States tell programs.
//
// [NewWithOptions] has the knobs. With WatchRBAC a change of rights is noticed in seconds rather than in a minute; that takes the
// right to watch RBAC (config/rbac/rbac-events.yaml):
//
//	NewCache: scopedcache.NewWithOptions(scopedcache.Options{WatchRBAC: true})
//
// # Usage
//
// Read and watch as with any controller-runtime cache. What a cached read gets:
//
//   - the objects, if the identity may list and watch them in that namespace (or in all, where an informer of all is there);
//   - apierrors.IsForbidden, naming verb, resource, namespace and identity, if it may not: after a round trip or two the first
//     time, and from memory then. Rights in some namespaces suffice for reads there; a read across all of them is
//     Forbidden, and never a part of the truth;
//   - meta.IsNoMatchError, if the kind is not served;
//   - a [*NotSyncedError], for which apierrors.IsTimeout holds, if that is not known in time: it says why;
//   - what was there last, while the API server fails;
//   - *cache.ErrCacheNotStarted before Start, [ErrStopped] after the cache has stopped, [ErrReleased] if the informer was
//     removed meanwhile, *cache.ErrResourceNotCached with ReaderFailOnMissingInformer, and an error about an unknown namespace if
//     the cache's options name others.
//
// Reads wait for ReadTimeout at most. GetInformer and WaitForCacheSync wait as long as their context.
//
// [Cache] Hold gives a [Handle] on a [Scope]: a namespace, a label and a field selector. The same scope is one informer,
// whoever holds it, and stops with its last holder. The handle reads it, takes handlers, and says how it does. The manager's
// cache is one: mgr.GetCache().(scopedcache.Cache); so is that of a connection, from ClusterCache's GetCluster.
//
// Handlers outlive informers. When a right or a kind comes back they are told of all there is, as creations, and of
// what has gone meanwhile, as DeletedFinalStateUnknown with an object that has name, UID, labels and owners only.
//
// # Considerations
//
//   - Rights are asked for, by SelfSubjectAccessReview for list and watch: before an informer starts, then every CheckInterval
//     (for watch alone), and when RBAC changes. The API server does not look again at a watch that runs for 5 to 10 minutes.
//     Whoever is authenticated may ask that by default (system:basic-user); where it may not be asked, the informer's own
//     answers count, and its watch is begun anew every CheckInterval. Ten questions are asked at a time.
//   - One denial is none. An API server in its first moments denies rightful requests, so a right that has worked is
//     lost only when it was denied three times over two seconds, without an error in between, by an API server that says at
//     /readyz that it is ready; ten seconds where it does not say so to this identity, and a minute where it says that it is
//     not. Errors are never denials.
//   - Each scope is a controller-runtime cache of its own, restricted to that scope: a few KiB beside its informer, and all
//     of client-go's care. No lock of ours is held across I/O, so a kind that hangs delays no other. (controller-runtime's
//     mapper holds one of its own while it discovers kinds.)
//   - Where an identity may list and not watch, an informer would never learn of a change. Such a right is none, unless
//     AllowListOnly has it listed every CheckInterval.
//   - A mapper that never forgets, as controller-runtime's, is not asked again about a kind that was not found at its
//     path: the API server's discovery is.
//   - Memory: what a handler was told of costs a map entry per object and handler.
//
// # Differences from controller-runtime's cache
//
// controller-runtime's own tests of its cache pass ("make conformance"), but for those that contradict the following:
//
//   - Before an informer starts, the API server is asked for the right. So a cache whose config reaches no API server
//     serves nothing, also if its informer is a fake (TestReaderWaitsForCacheSync).
//   - HasSynced and WaitForCacheSync mean settled: synced, or Forbidden, or not served. GetInformer then succeeds as well.
//   - GetInformer succeeds for a kind that is not served, and begins when it is.
//   - A read waits for ReadTimeout at most.
//   - Reads of a cache that has stopped fail; they do not go on from what was there last.
//   - IndexField starts no informer; the first read does.
//   - ByObject and DefaultNamespaces ask the API server nothing while the cache is made. ByObject.Namespaces of a kind that
//     has no namespaces is ignored rather than refused.
//
// The idea of informers counted by their dependents, with rights asked before reads, is telescopia's, as proposed for a
// dynamic cache; this is another implementation of it.
package scopedcache
