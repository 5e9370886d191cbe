package buckets_test

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/ownership"
	"github.com/latchkey-dev/latchkey/ownership/buckets"
)

// addControllers adds the host operator's own controllers, which use connections.
func addControllers(manager.Manager, clustercache.ClusterCache) error { return nil }

// The replicas take the place of one leader, also in a rolling update.
func Example_insteadOfLeader() {
	run := func(ctx context.Context, mgr manager.Manager, engine *buckets.Engine) error {
		replacing, err := ownership.WithLeaderLease(engine, mgr.GetConfig(), ownership.LeaderOptions{
			Lease:  types.NamespacedName{Namespace: "my-namespace", Name: "my-operator"}, // the leader's
			Holder: "replicas that share by 64 buckets",
		})
		if err != nil {
			return err
		}
		if _, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			Client:        clustercache.ClientOptions{UserAgent: "my-operator"},
			AllowIdentity: clustercache.GuardedByAdmission,
			Ownership:     replacing,
		}, controller.Options{}); err != nil {
			return err
		}
		return mgr.Start(engine.HandOver(ctx))
	}
	_ = run
}

// Replicas of a host operator share the extensions.
func Example() {
	run := func(ctx context.Context, mgr manager.Manager) error {
		engine, err := buckets.New(mgr.GetConfig(), buckets.Options{Namespace: "my-namespace", Name: "my-operator"})
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
		if err := addControllers(mgr, cc); err != nil { // with NeedLeaderElection: new(false)
			return err
		}
		return mgr.Start(engine.HandOver(ctx))
	}
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), manager.Options{
		GracefulShutdownTimeout: new(5 * time.Second), // with HandOver, less than the 30 s that a Pod has
	})
	if err == nil {
		err = run(ctrl.SetupSignalHandler(), mgr)
	}
	if err != nil {
		panic(err)
	}
}
