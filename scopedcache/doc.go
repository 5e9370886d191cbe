// Package scopedcache is a cache.Cache that lives with RBAC: informers start when the identity may
// list and watch, stop when it may not any more, and are healed when it may again; reads always
// end, with the truth. It does not need the rest of latchkey.
//
// # Setup
//
// [New] is a cache.NewCacheFunc. In any operator:
//
//	ctrl.NewManager(config, ctrl.Options{NewCache: scopedcache.New})
//
// An operator that lacks rights on some of its kinds then starts and stays up: its controllers of
// the others work, and those of these kinds begin when the rights are granted. With
// controller-runtime's own cache it ends after CacheSyncTimeout. (A kind that fails otherwise, with
// 5xx or without a connection, still ends it then.) The log says what is Forbidden or not served;
// [Options] Observe and [Cache] States tell programs: nothing else shows that an operator that is
// up does only half of its work (see the example of [Cache]).
//
// Controllers watch all namespaces unless cache.Options.DefaultNamespaces names some. An operator
// with Roles only sets that: else its controllers are Forbidden, and wait for a ClusterRole.
//
// Who is refused a read in Reconcile is not called when the right is granted, unless the controller
// watches that kind: watch it, or requeue after a while.
//
// [NewWithOptions] has the knobs. With WatchRBAC a change of rights is noticed in seconds rather
// than in a minute; that takes the right to watch RBAC (config/rbac/rbac-events.yaml):
//
//	NewCache: scopedcache.NewWithOptions(scopedcache.Options{WatchRBAC: true})
//
// # Usage
//
// Read and watch as with any controller-runtime cache. What a cached read gets:
//
//   - the objects, if the identity may list and watch them in that namespace (or in all, where an
//     informer of all is there);
//   - apierrors.IsForbidden, naming verb, resource, namespace and identity, if it may not: after a
//     few round trips the first time, and from memory then. Rights in some namespaces suffice for
//     reads there; a read across all of them is Forbidden, and never a part of the truth;
//   - meta.IsNoMatchError, if the kind is not served;
//   - a [*NotSyncedError], for which apierrors.IsTimeout holds, if the informer has not synced
//     within ReadTimeout or the context: it says why;
//   - what was there last, while the API server fails;
//   - *cache.ErrCacheNotStarted before Start, [ErrStopped] after the cache has stopped,
//     [ErrReleased] if the informer was removed meanwhile, *cache.ErrResourceNotCached with
//     ReaderFailOnMissingInformer, and an error about an unknown namespace if the cache's options
//     name others.
//
// Reads wait for ReadTimeout at most. GetInformer and WaitForCacheSync wait as long as their
// context; in a connection both are bounded by Client.Timeout too.
//
// What is so for how long:
//
//	state      reads                     asked again                                handlers are told
//	Syncing    wait                      -                                          what has been listed so far
//	Synced     the objects               every AccessReviewInterval, or when RBAC changes  what changes
//	Forbidden  apierrors.IsForbidden     after 2 s, then the same                   nothing; when it is back: creations, deletions
//	NotServed  meta.IsNoMatchError       after 2 to 10 s; after 1 s if it is read   the same
//	Failing    what was there last, or   after 0.5 to 10 s                          nothing; then what has changed
//	           wait if there is nothing
//
// [Cache] Hold gives a [Handle] on a [Scope]: a namespace, a label and a field selector. The same
// scope is one informer, whoever holds it, and stops with its last holder. The handle reads it,
// takes handlers, and says how it does. The manager's cache is one:
// mgr.GetCache().(scopedcache.Cache); so is that of a connection, from ClusterCache's GetCluster.
//
// Handlers outlive informers. When a right or a kind comes back they are told of all there is, as
// creations, and of what has gone meanwhile, as DeletedFinalStateUnknown with an object that has
// name, UID, labels and owners only.
//
// # Considerations
//
//   - Rights are asked for, by SelfSubjectAccessReview for list and watch: before an informer
//     starts, then every AccessReviewInterval (for watch alone), and, with WatchRBAC, when a change
//     of RBAC concerns the identity. The API server authorises a watch when it begins and not
//     again, and it lasts 5 to 10 minutes. Whoever is authenticated may ask that by default
//     (system:basic-user); where it may not be asked, the informer's own answers count, and its
//     watch is begun anew every AccessReviewInterval. Ten rights are asked for at a time.
//   - One denial is none. What never worked is Forbidden at the first no, and asked for again after
//     2 s. But an API server in its first moments denies rightful requests, so a right that has
//     worked is lost only when it was denied three times over two seconds, without an error in
//     between, by an API server that says at /readyz that it is ready; ten seconds where it does
//     not say so to this identity, and a minute where it says that it is not. Errors are never
//     denials.
//   - Each scope is a controller-runtime cache of its own, restricted to that scope: a few KiB
//     beside its informer, and all of client-go's care. No lock of ours is held across I/O, so a
//     kind that hangs delays no other. (controller-runtime's mapper holds one of its own while it
//     discovers kinds.)
//   - Where an identity may list and not watch, an informer would never learn of a change. Such a
//     right is none, unless PollWithoutWatch has it listed again and again.
//   - controller-runtime's mapper never forgets a kind. So where a kind is not found at its path,
//     the API server's discovery is asked instead.
//   - Memory: what a handler was told of costs a map entry per object and handler.
//
// # Differences from controller-runtime's cache
//
// controller-runtime's own tests of its cache pass ("make conformance"), but for those that
// contradict the following:
//
//   - Before an informer starts, the API server is asked for the right. So a cache whose config
//     reaches no API server serves nothing, also if its informer is a fake
//     (TestReaderWaitsForCacheSync).
//   - HasSynced and WaitForCacheSync mean settled: synced, or Forbidden, or not served. GetInformer
//     then succeeds as well.
//   - GetInformer succeeds for a kind that is not served, and begins when it is.
//   - A read waits for ReadTimeout at most.
//   - Reads of a cache that has stopped fail; they do not go on from what was there last.
//   - IndexField starts no informer; the first read does.
//   - Selectors that select nothing, as labels.Nothing, are refused.
//   - With DefaultWatchErrorHandler, which is told of every error, client-go alone tries again what
//     fails.
//   - HTTPClient.Timeout, which would end watches, is ignored.
//   - ByObject and DefaultNamespaces ask the API server nothing while the cache is made.
//     ByObject.Namespaces of a kind that has no namespaces is ignored rather than refused.
//
// The idea of informers counted by their dependents, with rights asked before reads, is that of
// telescopia, a proposed dynamic cache for operator-framework; this is another implementation of
// it.
package scopedcache
