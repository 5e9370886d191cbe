// Package clustercache gives every tenant object of a host operator its own connection. The
// connection acts as exactly the ServiceAccount that the object names. This package calls such an
// object an extension.
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
// Controllers call a getter every time they need a client: GetClient costs nanoseconds and never
// waits.
//
//	c, err := cc.GetClient(ctx, client.ObjectKeyFromObject(extension))
//	if errors.Is(err, clustercache.ErrNotConnected) {
//		return ctrl.Result{}, nil // the extension source calls again when it connects
//	}
//
// A controller that gets [ErrNotConnected] does not requeue and does not poll.
// [ClusterCache].GetExtensionSource delivers an event whenever the extension connects, disconnects,
// or stays disconnected for another reason.
//
// Handles (clients, readers, configs) belong to one connection. After a disconnect every call on
// them fails at once and permanently. Call the getter again after the connect event. Watches are
// different: they belong to the extension and resume by themselves after a reconnect.
// [ClusterCache].Watch watches one kind. [ClusterCache].WatchContent watches all kinds that a
// content has.
//
// Options.Credentials sets the identity that an extension acts as, and how the connection proves
// that identity: see package credential. Options.WatchFilterValue and Options.Filter select the
// extensions. Metrics are on controller-runtime's registry. docs/operations.md explains the metrics
// and every [Reason]. Package fake is a ClusterCache for unit tests.
//
// Cached reads and watches return only objects that the identity may list and watch:
//
//   - A read without this permission returns an error for which apierrors.IsForbidden is true. The
//     error names the missing permission.
//   - A watch without this permission waits, and OnError receives the error.
//   - A granted or revoked permission takes effect within CacheOptions.AccessReviewInterval, or
//     within seconds with CacheOptions.WatchRBAC. The extension sources then deliver an event.
//
// [ConnectionState].Scopes has the state of each informer. Package scopedcache documents the
// details.
//
// What most controllers need: [EnqueueExtension] is the map function for the extension source, and
// [EnqueueFor] the event handler for watches. [Condition] turns the error of a call into a
// condition for the extension's status. [Handler] shows all states on the manager's metrics server.
//
// # Deleting a tenant
//
// An extension that is being deleted keeps its connection until its last finalizer is gone. So a
// controller with a finalizer deletes the content as the extension's identity, and then removes its
// finalizer with the host operator's client; see ExampleClusterCache_deletion in example_test.go.
//
// The identity may be gone first: a user deleted the ServiceAccount, its Role, the Secret or the
// whole namespace. Then GetClient returns a [NotConnectedError], for example with
// [ReasonServiceAccountNotFound], or the deletion of the content is Forbidden. The author of the
// controller decides what happens, and the users should read it in the documentation of the kind:
//
//   - Wait: keep the finalizer, write the error into a condition ([Condition] does), and return.
//     The extension source calls when the identity is back. Without the condition, the extension
//     would stay Terminating for no visible reason.
//   - Leave: remove the finalizer, and leave the content where it is.
//   - Never delete with the host operator's own permissions what a tenant named: the name of an
//     object in the content is the tenant's choice. A host operator that deletes it acts for the
//     tenant with permissions that the tenant does not have.
//
// # Considerations
//
//   - One reconciler serves all extensions and never dials. Extensions whose API server hangs
//     therefore delay no other extension. Locking is as simple as possible: the reconciler decides,
//     and other controllers read snapshots.
//   - On a replica that is not the leader, every getter returns a [NotConnectedError] with reason
//     NotStarted, or NotLeading with ownership.Leader in Options.Ownership.
//   - With another engine in Options.Ownership each replica is connected for its share of the
//     extensions. For the others getters return reason NotOwned: return without a requeue, and
//     write no status.
//   - Leader election alone does not keep a replica from acting after it has lost its lease: a
//     replica that was suspended or cut off notices late. The fence of ownership.Leader does.
//     [ErrOutcomeUnknown] is in the chain of the error of a write that was under way when its
//     connection ended.
//   - Anyone who may write an extension chooses its ServiceAccount. An extension of a namespaced
//     kind may name only a ServiceAccount of its own namespace, unless Options.AllowIdentity
//     decides otherwise. In that namespace the extension may name any ServiceAccount, unless a
//     policy like that in config/admission-namespaced guards it. For cluster-scoped kinds the host
//     operator's author must state the guard. With kubeconfigs the guard is
//     credential.KubeconfigOptions.Allow.
//   - An extension can be connected and serve nothing, because its identity lacks permissions. Such
//     an extension is degraded: ConnectionState has its Problems, and Summary, for people, one of
//     [SummaryConnected], [SummaryDegraded], [SummaryConnecting] and [SummaryDisconnected]. What a
//     tenant causes can be muted: [MuteAnnotation], ProblemOptions.
//   - Your controller and this reconciler read the extension independently. When your controller
//     acts on fields of the extension, it must act as the identity that the same fields name. Call
//     For with the object that it has read, and use the calls of the result. They fail with
//     [ReasonStale] if the connection was made for another object or reference. If the connection
//     changes later, calls on the client fail.
//   - Event handlers, OnError and map functions are the host operator's code, called on behalf of
//     tenants. A function that hangs delays only its own events. A function that panics loses its
//     event, and the panic is logged and counted.
//   - The reconciler calls Filter, AllowIdentity, a RESTConfigMapper, KubeconfigOptions.Allow, the
//     Reference functions and the function of credential.Choose. A function that waits delays every
//     extension, so these functions may read only their arguments and caches. A function that
//     panics refuses the extension. For calls the Reference functions and that of Choose too, in
//     the caller's goroutine.
//   - Informers call transforms and index functions. A panic there ends the process, as with
//     controller-runtime's own cache.
//   - The host operator may lack the permission to read extensions or ServiceAccounts. With
//     scopedcache as the manager's cache (ctrl.Options{NewCache: scopedcache.New}), errors then
//     have the reason [ReasonOperatorForbidden]. The manager stays up, and continues when the
//     permission is granted. controller-runtime's own cache waits for its CacheSyncTimeout, two
//     minutes, and then the manager ends.
//   - Any cache reports Secrets with kubeconfigs that the host operator may not read.
//   - The host operator's own identity serves its own manager, including Events if enabled, and the
//     credentials. Credentials use it for TokenRequests or impersonation and to watch the metadata
//     of ServiceAccounts, or to watch the Secrets with kubeconfigs. docs/security.md lists what an
//     attacker gains with each stolen permission.
//
// The design is that of Cluster API's clustercache, with connections per identity instead of per
// cluster. docs/architecture.md lists the differences and their reasons.
package clustercache
