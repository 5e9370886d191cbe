package fence_test

import (
	"context"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fence"
)

var (
	ctx    context.Context
	config *rest.Config
	lock   resourcelock.Interface // of leaderelection.NewResourceLock, for example
)

func ExampleForLeaderElection() {
	setUp := func() error {
		leaseDuration := 15 * time.Second
		lock, f := fence.ForLeaderElection(lock, leaseDuration)
		mgr, err := ctrl.NewManager(config, ctrl.Options{
			LeaderElection:                      true,
			LeaderElectionResourceLockInterface: lock,
			LeaseDuration:                       &leaseDuration,
		})
		if err != nil {
			return err
		}
		cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			Client:        clustercache.ClientOptions{UserAgent: "my-operator"},
			AllowIdentity: clustercache.GuardedByAdmission,
			Fence:         f,
		}, controller.Options{})
		_ = cc
		return err
	}
	_ = setUp
}
