// Package controllersharding is an engine of package ownership that follows the labels of
// kubernetes-controller-sharding (github.com/timebertt/kubernetes-controller-sharding, v0.13): a
// sharder labels each extension with the replica that has it. A replica is a shard there.
//
// # Setup
//
//	engine, err := controllersharding.New(config, controllersharding.Options{
//		Ring: "my-operator", Namespace: "my-namespace"})
//	mgr, err := ctrl.NewManager(config, ctrl.Options{Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
//		&MyKind{}: {Label: engine.Selector()}}}})
//	cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
//		Object:    &MyKind{},
//		Ownership: engine,
//		Client:    clustercache.ClientOptions{UserAgent: "my-operator"},
//	}, controller.Options{})
//
// The sharder must run in the cluster, with a ControllerRing of that name that lists the kind of
// the extensions. The host operator needs get, create and update on leases in its namespace, and
// patch on the extensions.
//
// # Usage
//
// The shard holds a Lease of its own name, apart from any leader election of the manager. The
// engine takes the extensions whose shard label names the shard. When the sharder adds the drain
// label, the engine gives the extension up. Then it removes both labels in one write, which fails
// if the extension has changed meanwhile. In that write, the sharder's webhook labels the extension
// for another shard.
//
// # Considerations
//
//   - Cluster-scoped kinds are refused: the sharder labels them, but never moves them (its issue
//     680).
//   - If a shard ends without releasing its Lease, the sharder gives its extensions to others after
//     twice the duration of the Lease. The fence closes after the duration.
//   - A shard that ends gracefully releases its Lease, and the sharder moves all its extensions at
//     once.
//   - A user who may write an extension can change its labels, and thus which replica serves it.
//     Two replicas can serve it then, but only until both have seen the change.
//   - The name of the shard must be unique in the ring, in all namespaces. The sharder does not
//     check that. If two processes in one namespace have one name, one of them waits.
//   - The kind must be in the ring's spec.resources. The sharder moves kinds in controlledResources
//     without a drain: two replicas can act until both have seen the change.
//   - The sharder goes by the wall clock. A replica whose clock is behind by more than twice the
//     duration of the Lease loses its extensions without a drain.
//   - The sharder takes every Lease with the label of the ring for a shard, in all namespaces. So a
//     user who may create Leases anywhere in the cluster can take extensions away from replicas.
//     Restrict that label with an admission policy.
package controllersharding
