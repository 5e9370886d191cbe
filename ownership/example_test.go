package ownership_test

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/ownership"
	"github.com/latchkey-dev/latchkey/ownership/buckets"
)

// addControllers adds the host operator's own controllers, which use connections.
func addControllers(manager.Manager, clustercache.ClusterCache) error { return nil }

// One replica has all extensions, and sends nothing as them after its lease has ended. lock is that
// of the leader election: fence.ForLeaderElection has an example that makes one.
func ExampleLeader() {
	leaseDuration := 15 * time.Second // also that of the lock
	run := func(ctx context.Context, lock resourcelock.Interface) error {
		lock, f := fence.ForLeaderElection(lock, leaseDuration)
		mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), manager.Options{
			LeaderElection:                      true,
			LeaderElectionResourceLockInterface: lock,
			LeaderElectionReleaseOnCancel:       true,
			LeaseDuration:                       &leaseDuration,
		})
		if err != nil {
			return err
		}
		cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			Client:        clustercache.ClientOptions{UserAgent: "my-operator"},
			AllowIdentity: clustercache.GuardedByAdmission,
			Ownership:     ownership.Leader(f),
		}, controller.Options{})
		if err != nil {
			return err
		}
		if err := addControllers(mgr, cc); err != nil {
			return err
		}
		return mgr.Start(ctx)
	}
	_ = run
}

// Replicas that share follow replicas of which one led, in a rolling update. They hold the leader's
// Lease together, so that no leader acts beside them.
func ExampleWithLeaderLease() {
	run := func(ctx context.Context, mgr manager.Manager) error { // without leader election
		shared, err := buckets.New(mgr.GetConfig(), buckets.Options{Namespace: "my-namespace", Name: "my-operator"})
		if err != nil {
			return err
		}
		engine, err := ownership.WithLeaderLease(shared, mgr.GetConfig(), ownership.LeaderOptions{
			Lease:  types.NamespacedName{Namespace: "my-namespace", Name: "my-operator"},
			Holder: "replicas that share by 64 buckets",
		})
		if err != nil {
			return err
		}
		cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			Client:        clustercache.ClientOptions{UserAgent: "my-operator"},
			AllowIdentity: clustercache.GuardedByAdmission,
			Ownership:     engine,
		}, controller.Options{})
		if err != nil {
			return err
		}
		if err := addControllers(mgr, cc); err != nil {
			return err
		}
		return mgr.Start(shared.HandOver(ctx))
	}
	_ = run
}
