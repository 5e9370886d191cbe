// Package scopedcache provides a cache.Cache that follows RBAC as it changes. An informer starts
// when the identity may list and watch. The informer stops when access is revoked, and a new one
// starts when access is granted again. Every read ends: with the objects, or with an error that
// names the reason. The package does not need the rest of latchkey.
//
// # Setup
//
// [New] is a cache.NewCacheFunc. Use it in any operator:
//
//	ctrl.NewManager(config, ctrl.Options{NewCache: scopedcache.New})
//
// An operator that lacks access to some of its kinds then starts and stays up. Its controllers of
// the other kinds work. The controllers of these kinds begin when access is granted. With
// controller-runtime's own cache, the operator ends after CacheSyncTimeout. (A kind that fails in
// another way, with 5xx or without a connection, still ends the operator then.)
//
// The log reports which kinds are Forbidden or not served. Programs get the same information from
// OnStateChange of [Options] and from States of [Cache]. Use one of them: nothing else shows that a
// running operator does only half of its work (see the example of [Cache]).
//
// Controllers watch all namespaces unless cache.Options.DefaultNamespaces names some. An operator
// that has only Roles sets DefaultNamespaces, or watches a [Handle] of a set of namespaces with
// source.Informer (see the example of [WhereverAllowed]). Otherwise its controllers are Forbidden,
// and wait for a ClusterRole.
//
// If a read in Reconcile is refused, controller-runtime does not call Reconcile again when access
// is granted, unless the controller watches that kind. Watch the kind, or requeue after a while.
//
// [NewWithOptions] accepts options. With WatchRBAC the cache notices a change of permissions within
// seconds rather than within a minute. WatchRBAC needs permission to watch RBAC objects
// (config/rbac/rbac-events.yaml):
//
//	NewCache: scopedcache.NewWithOptions(scopedcache.Options{WatchRBAC: true})
//
// # Usage
//
// Read and watch as with any controller-runtime cache. A cached read returns one of the following:
//
//   - the objects, if the identity may list and watch them in that namespace (or in all namespaces,
//     if there is an informer of all namespaces);
//   - apierrors.IsForbidden, with verb, resource, namespace and identity, if the identity may not
//     list and watch. The first such read takes a few round trips. Later ones are answered from
//     memory. Access in some namespaces suffices for reads there. A read across all namespaces is
//     then Forbidden, and never returns a part of the objects. Access to a name (resourceNames in a
//     Role) suffices to Get that object, or to List with the field metadata.name. The first Get of
//     a name asks for that permission, which costs two reviews; a cache asks for ten names a second
//     at most, after the first hundred, and has 100 informers of names at most. Beyond that such a
//     Get is Forbidden. With LiveGet of [Options], get alone suffices to Get;
//   - meta.IsNoMatchError, if the API server does not serve the kind;
//   - a [*NotSyncedError], for which apierrors.IsTimeout holds, if the informer has not synced
//     within ReadTimeout or before the context ends. The error contains the reason;
//   - the last known objects, while the API server fails;
//   - *cache.ErrCacheNotStarted before Start;
//   - [ErrStopped] after the cache has stopped;
//   - [ErrReleased], if the informer is removed during the read;
//   - *cache.ErrResourceNotCached, with ReaderFailOnMissingInformer;
//   - an error about an unknown namespace, if the cache's options name other namespaces.
//
// Reads wait for ReadTimeout at most. GetInformer and WaitForCacheSync wait as long as their
// context. In a connection of latchkey, Client.Timeout bounds these two as well.
//
// A read is answered by an informer that provably has the answer: the one of the namespace or, if
// there is none, of all namespaces, without selectors, once it has synced; else one that a [Handle]
// or an earlier read began and of which each requirement is one of the read's. So a Get of a name
// uses the watch of that name, and a List with labels uses the watch with these labels. An informer
// with labels never answers a Get: that it lacks the object proves nothing. Requirements are
// compared as in [Scope.Equal]. Only if there is none, the read starts an informer. When the
// informer that answers is another one than before, a read may once return an earlier version than
// the read before it. In a trace, the caller's span has an event latchkey.cached_read, which says
// which scope answered.
//
// The following table lists the states of a scope: what a read returns, when the cache asks the API
// server again, and which events handlers receive. "Regularly" means every AccessReviewInterval, or
// when RBAC changes.
//
//	state      reads                    asks again                    event handlers receive
//	Syncing    wait                     -                             the objects listed so far
//	Synced     the objects              regularly                     each change
//	Forbidden  apierrors.IsForbidden    after 2 s, then regularly     nothing while Forbidden; add and
//	                                                                  delete events when access is back
//	Live       Get: the API server,     regularly                     the same as for Forbidden
//	           List: IsForbidden
//	NotServed  meta.IsNoMatchError      after 2 to 10 s, or after     the same as for Forbidden
//	                                    1 s if a reader asks
//	Failing    the last known objects,  after 0.5 to 10 s; 1 to 30 s  nothing while Failing; then the
//	           or wait if none          before an informer has        changes since
//	                                    started
//
// Hold of [Cache] returns a [Handle] on a [Scope]: a namespace, a label selector and a field
// selector. All holders of one scope share one informer, which stops when the last holder releases
// the scope. The handle reads the scope, accepts event handlers, and reports the scope's state. The
// manager's cache is a [Cache]: mgr.GetCache().(scopedcache.Cache). The cache of a connection, from
// GetCluster of ClusterCache, is one too. A scope that only reads use, without a handle, ends when
// nothing has read it for IdleTimeout, which is for ever by default. Without an IdleTimeout, a
// scope with selectors that was held ends with its last handle, even if reads have used it.
//
// A scope with a set of namespaces ([InNamespaces], [NamespacesWithLabels], [WhereverAllowed]) has
// the informers of the scopes of each, and shares them; with WhereverAllowed and a permission for
// all namespaces, it has one informer. Its handlers receive the events of all, and its reads
// include all. Each namespace has its own state; that of the set is [StatePartial] while some are
// Synced and something is missing.
//
// Event handlers outlive informers. When access or a kind comes back, handlers receive an add event
// for every object. For each object that was deleted in the meantime they receive
// DeletedFinalStateUnknown. The object in it has name, UID, labels and owners only.
//
// [ReadyCheck] is a readiness check for a manager with such a cache.
//
// # Considerations
//
//   - The cache asks for permission with SelfSubjectAccessReviews for list and watch before an
//     informer starts. The review is repeated, for watch alone, every AccessReviewInterval. With
//     WatchRBAC, the cache repeats the review when a change of RBAC concerns the identity, once
//     more within AccessReviewInterval (also for an informer that starts within that time after a
//     change that concerns any identity), and otherwise every ten times AccessReviewInterval. The
//     reason: the API server authorizes a watch when it begins and not again, and a watch lasts 5
//     to 10 minutes. By default every authenticated identity may create such reviews
//     (system:basic-user). If the identity may not, the answers to the informer's own requests
//     count, and the cache restarts the informer's watch every AccessReviewInterval. At most ten
//     reviews are sent at a time.
//   - A single denial is not trusted where access has worked, because an API server denies
//     legitimate requests in its first moments. Access counts as revoked after three denials over
//     two seconds, without an error in between, by an API server that is ready according to
//     /readyz. The time is ten seconds if /readyz does not answer this identity, and a minute if
//     /readyz reports that the API server is not ready. Where access has never worked, the first
//     denial makes the scope Forbidden, and the cache asks again after 2 s. Errors never count as
//     denials.
//   - Each scope has an informer of its own. client-go's Reflector lists and watches. Before its
//     first object an informer has four goroutines and takes 31 KiB, of which half is their stacks
//     (docs/benchmarks.md). An event handler has a goroutine only while it has something to receive.
//   - This package holds no lock across I/O, so a kind that hangs delays no other kind.
//     (controller-runtime's mapper holds a lock of its own while it discovers kinds.)
//   - Event handlers receive the objects of the store, which they must not change. With an
//     [ObjectPool] other caches may have the same objects.
//   - Informers share the config's RateLimiter. If it has none, the informers of one kind share its
//     QPS and Burst. controller-runtime's cache has a limit per informer. A cache with many scopes
//     needs higher limits. Or set QPS to -1, and rely on the API server's priority and fairness.
//   - If an identity may list but not watch, an informer would never receive a change. Such a scope
//     is Forbidden, unless PollWithoutWatch makes its informer list periodically.
//   - controller-runtime's mapper never forgets a kind. So if the API server answers 404 at a
//     kind's path, the cache asks the API server's discovery instead.
//   - Memory: each object that a handler has received costs one map entry per handler.
//
// # Differences from controller-runtime's cache
//
// controller-runtime's own tests of its cache pass ("make conformance"), except for the tests that
// contradict one of these differences:
//
//   - The cache asks the API server for permission before an informer starts. So a cache whose
//     config reaches no API server serves nothing, even if its informer is a fake
//     (TestReaderWaitsForCacheSync).
//   - HasSynced and WaitForCacheSync mean settled: synced, Forbidden, or not served. GetInformer
//     then succeeds as well.
//   - GetInformer succeeds for a kind that is not served. The informer starts when the kind is
//     served.
//   - A read waits for ReadTimeout at most.
//   - Reads of a cache that has stopped fail. Such reads do not continue with the last known
//     objects.
//   - IndexField starts no informer; the first read does.
//   - List by the fields metadata.name and metadata.namespace needs no index.
//   - Selectors that select nothing, such as labels.Nothing, are refused.
//   - With DefaultWatchErrorHandler, which receives every error, client-go alone retries what
//     fails.
//   - HTTPClient.Timeout is ignored, because it would end watches.
//   - ByObject and DefaultNamespaces cause no request to the API server when the cache is created.
//     ByObject.Namespaces of a cluster-scoped kind is ignored rather than refused.
//
// The idea comes from telescopia, a proposed dynamic cache for operator-framework: informers are
// counted by their dependents, and permissions are checked before reads. This package is another
// implementation of the idea.
package scopedcache
