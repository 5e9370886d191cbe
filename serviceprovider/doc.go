// Package serviceprovider is the generic half of a controller that provides a service to tenants.
// Each order is an object on an onboarding cluster. The controller obtains access to the tenant's
// control plane, and to a workload cluster if wanted, reconciles there, reports the status and
// cleans up. The author of a provider writes a [Reconciler].
//
// The package does what openMCP's runtime for service providers does, with requests of the same
// wire form. Connections are kept, probed, watched and rotated by package clustercache instead of
// being made in each reconcile.
//
// # Setup
//
// A provider has a manager that runs the onboarding and the platform cluster, and
//
//   - [NewClusterAccess], which requests access and keeps a connection for each tenant,
//   - a [ConfigReconciler], which reads the provider's config on the platform cluster,
//   - an [APIReconciler], which reconciles the orders.
//
// examples/serviceprovider is a complete provider, and docs/serviceprovider.md explains it.
//
// # Usage
//
// The Reconciler gets the clusters of an order in each call:
//
//	func (reconciler) CreateOrUpdate(ctx context.Context, obj *v1alpha1.Mailbox, config *v1alpha1.ProviderConfig,
//		clusters serviceprovider.ClusterContext) (ctrl.Result, error) {
//		err := clusters.MCPCluster.Watch(ctx, &corev1.ConfigMap{}, nil, serviceprovider.InScope(...))
//		...
//		err = clusters.MCPCluster.Client().Apply(ctx, ...)
//		...
//		serviceprovider.StatusReady(obj)
//		return ctrl.Result{}, nil
//	}
//
// The status of an order has the condition [ServiceProviderConditionReady] and a phase:
// [StatusPhaseReady], [StatusPhaseProgressing] or [StatusPhaseTerminating]. The author reports with
// [StatusReady] and [StatusProgressing] ([ReasonReady], [ReasonReconciling],
// [ReasonReconcileError]), and in Delete also with [StatusTerminating] ([ReasonTerminating]) and
// [StatusTerminatingWithReason]. The runtime reports what it waits for: the config
// ([ReasonProviderConfigMissing], [ReasonProviderConfigDeleting]), access ([ReasonAccessPending],
// [ReasonAccessDenied], [ReasonAccessConflict], [ReasonAccessError], [ReasonAccessLost],
// [ReasonAccessDeleting]), or a connection (the reasons of package clustercache).
//
// A Reconciler that depends on Secrets or ConfigMaps of the platform cluster is also a
// [SecretWatcher] or a [ConfigMapWatcher].
//
// People set [OperationAnnotation] (to [OperationIgnore] or [OperationReconcile]) and
// [OrphanAnnotation] on an order. Callers of a [ClusterAccessProvider] compare its errors with
// [ErrAccessDenied] and [ErrAccessConflict].
//
// # Considerations
//
//   - [Cluster.Client] reads from a cache. The permissions that the provider requests must include
//     list and watch for that; otherwise use [Cluster.UncachedClient].
//   - The provider acts on each tenant's cluster as the identity of the kubeconfig that the
//     platform gave for that tenant, and as nothing else. Kubeconfigs are checked as
//     credential.KubeconfigSecrets says: those that would run a program are refused.
//   - A tenant whose server does not answer takes up a worker for at most Client.Timeout per
//     request until its connection is given up. There are 10 workers by default.
//   - A restart of the process loses nothing: all progress is in the objects.
//   - While nothing changes, a reconcile sends one request to the onboarding cluster and none to
//     the platform cluster.
package serviceprovider
