package fence_test

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/ownership"
)

var (
	ctx    context.Context
	config *rest.Config
)

func ExampleForLeaderElection() {
	leaseDuration, renewDeadline := 15*time.Second, 10*time.Second
	setUp := func(hostname string) error {
		lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, "my-namespace", "my-operator",
			resourcelock.ResourceLockConfig{Identity: hostname + "_" + string(uuid.NewUUID())}, config, renewDeadline)
		if err != nil {
			return err
		}
		lock, f := fence.ForLeaderElection(lock, leaseDuration)
		mgr, err := ctrl.NewManager(config, ctrl.Options{
			LeaderElection:                      true,
			LeaderElectionResourceLockInterface: lock,
			LeaderElectionReleaseOnCancel:       true, // the process ends when Start returns
			LeaseDuration:                       &leaseDuration,
			RenewDeadline:                       &renewDeadline,
		})
		if err != nil {
			return err
		}
		cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			Client:        clustercache.ClientOptions{UserAgent: "my-operator"},
			AllowIdentity: clustercache.GuardedByAdmission,
			Ownership:     ownership.Leader(f),
		}, controller.Options{})
		_ = cc
		return err
	}
	_ = setUp
}
