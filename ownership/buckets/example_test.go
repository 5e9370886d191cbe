package buckets_test

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/ownership/buckets"
)

// addControllers adds the host operator's own controllers, which use connections.
func addControllers(manager.Manager, clustercache.ClusterCache) error { return nil }

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
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), manager.Options{})
	if err == nil {
		err = run(ctrl.SetupSignalHandler(), mgr)
	}
	if err != nil {
		panic(err)
	}
}
