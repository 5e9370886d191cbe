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
//		Object: &MyKind{}, Ownership: engine, Client: clustercache.ClientOptions{UserAgent: "my-operator"},
//	}, controller.Options{})
//
// The sharder must run in the cluster, with a ControllerRing of that name that lists the kind of
// the extensions. The host operator needs get, create and update on leases in its namespace, and
// patch on the extensions.
//
// # Usage
//
// The shard holds a Lease of its own name, apart from any leader election of the manager. An
// extension whose shard label names it is connected. When the sharder adds the drain label, the
// engine gives the extension up, and removes both labels in one write that fails if the extension
// has changed meanwhile; the sharder's webhook gives it to another shard in that same write.
//
// # Considerations
//
//   - Cluster-scoped kinds are refused: the sharder labels them, but never moves them (its issue
//     680).
//   - The sharder gives the extensions of a shard that ended without releasing its Lease to others
//     after twice the duration of its Lease. The fence closes after once the duration.
//   - A shard that ends gracefully releases its Lease, and the sharder moves all its extensions at
//     once.
//   - Those who may write an extension can change its labels, and so which replica serves it. They
//     cannot make two replicas serve it for longer than the change takes to arrive at both.
//   - The name of the shard must be unique in the ring, in all namespaces: the sharder does not
//     check that. Of two processes with one name in one namespace, one waits.
//   - The kind must be in the ring's spec.resources: what is in controlledResources is moved
//     without a drain, and then two replicas can act for as long as the change takes to arrive.
//   - The sharder goes by the wall clock. A replica whose clock is behind by more than twice the
//     duration of the Lease loses its extensions without a drain.
//   - The sharder takes every Lease with the label of the ring for a shard, in all namespaces. Who
//     may create Leases anywhere in the cluster can so take extensions away from replicas. Restrict
//     that label with an admission policy.
package controllersharding
