// Package clustercache gives every tenant object of a host operator a connection that acts as
// exactly the ServiceAccount it names.
//
// # Setup
//
// [SetupWithManager] adds one reconciler to the manager and returns a [ClusterCache].
//
//	cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
//		Client:        clustercache.ClientOptions{UserAgent: "my-operator"},
//		AllowIdentity: clustercache.GuardedByAdmission,
//	}, controller.Options{})
//
// # Usage
//
// Controllers ask for what they need, every time they need it: GetClient costs nanoseconds and
// never waits.
//
//	c, err := cc.GetClient(ctx, client.ObjectKeyFromObject(extension))
//	if errors.Is(err, clustercache.ErrNotConnected) {
//		return ctrl.Result{}, nil // the extension source calls again when it connects
//	}
//
// A controller that gets [ErrNotConnected] does not requeue and does not poll:
// [ClusterCache].GetExtensionSource delivers an event whenever the extension connects, disconnects,
// or stays disconnected for another reason. Handles (clients, readers, configs) belong to one
// connection. After a disconnect they fail at once and for ever; ask again after the connect event.
// Watches are different: they are registered with the extension and come back by themselves.
// [ClusterCache].Watch is for a kind, WatchContent for whatever kinds a content has.
//
// Options.Credentials says whom an extension acts as, and how that is proven: see package
// credential. Options.WatchFilterValue and Options.Filter choose the extensions. Metrics are on
// controller-runtime's registry; docs/operations.md explains them, and every [Reason]. Package fake
// is a ClusterCache for unit tests.
//
// Cached reads and watches see what the identity may list and watch, and no more: a read that it
// may not is apierrors.IsForbidden, whose error says what is missing; a watch waits, and OnError is
// told. When a right is granted or revoked that is noticed within
// CacheOptions.AccessReviewInterval, or within seconds with CacheOptions.WatchRBAC, and the
// extension sources call. [ConnectionState].Scopes says how each informer does; package scopedcache
// has the rest. The fields of what is an alias here: go doc
// github.com/latchkey-dev/latchkey/accessor CacheOptions.
//
// # Considerations
//
//   - There is one reconciler and it never dials, so extensions at a server that hangs delay nobody
//     else. It is the simplest locking there is: it decides, other controllers read snapshots.
//   - On a replica that does not lead, every getter returns a [NotConnectedError] with reason
//     NotStarted.
//   - Whoever may write an extension names its ServiceAccount. Namespaced kinds may only name one
//     of their own namespace, unless Options.AllowIdentity says otherwise; within it any, unless a
//     policy like that in config/admission-namespaced guards it. For cluster-scoped kinds the
//     author must state the guard. With kubeconfigs it is credential.KubeconfigOptions.Allow.
//   - Your controller and this one read the extension independently. What you do on behalf of
//     fields that you read, do as the identity that they name: after GetClient compare
//     [ConnectionState].Identity (with kubeconfigs, Source) with the reference, and wait for the
//     connect event if they differ. A client whose connection changes after that fails.
//   - Handlers, OnError and map functions are the host operator's code, called on behalf of
//     tenants. One that hangs holds up its own events only; one that panics loses its event, and is
//     logged and counted.
//   - Filter, AllowIdentity, a RESTConfigMapper and KubeconfigOptions.Reference are called by the
//     reconciler: one that waits holds up every extension, so they only look at what they are given
//     and at caches. One that panics has said no. Transforms and index functions are called by
//     informers, and a panic there ends the process, as with controller-runtime's own cache.
//   - Where the host operator may not read extensions or ServiceAccounts, errors say so
//     ([OperatorForbidden]) if the manager's cache is scopedcache's (ctrl.Options{NewCache:
//     scopedcache.New}): that stays up and goes on when the permission is granted. Secrets with
//     kubeconfigs that may not be read are reported with any cache. controller-runtime's own cache
//     waits for its CacheSyncTimeout, two minutes, and then the manager ends.
//   - The host operator's own identity is used for its own manager (Events, if asked for,
//     included), and by the credentials: for TokenRequests or to impersonate, and to watch the
//     metadata of ServiceAccounts, or to watch the Secrets with kubeconfigs. docs/security.md says
//     what each right gains whoever steals it.
//
// The design is that of Cluster API's clustercache, turned from "per cluster" into "per identity";
// docs/architecture.md says where it differs and why.
package clustercache
