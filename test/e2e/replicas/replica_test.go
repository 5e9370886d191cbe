package replicas

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fence"
)

const (
	leaseDuration = 3 * time.Second
	renewDeadline = 2 * time.Second
	retryPeriod   = 500 * time.Millisecond
)

// options are the options of a replica. A replica is a process of this test binary.
type options struct {
	Name       string
	Kubeconfig string
	// LeaseHost is where the replica reaches the API server for its lease.
	LeaseHost  string
	Extensions []string
	// Unfenced leaves out what is tested, to see the tests fail.
	Unfenced bool
}

const optionsVariable = "LATCHKEY_TEST_REPLICA"

// runReplica runs a host operator that writes for all its tenants all the time, until it loses its lease
// or receives SIGTERM.
func runReplica(text string) error {
	var o options
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	logger := funcr.New(func(prefix, args string) {
		fmt.Fprintln(os.Stderr, time.Now().Format(time.StampMicro), prefix, args)
	}, funcr.Options{})
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return err
	}
	config.UserAgent = o.Name
	lock, err := newLock(config, o)
	if err != nil {
		return err
	}
	lock, f := fence.ForLeaderElection(lock, leaseDuration)
	mgr, err := ctrl.NewManager(config, manager.Options{
		Metrics:        metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionResourceLockInterface: lock, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: new(leaseDuration), RenewDeadline: new(renewDeadline), RetryPeriod: new(retryPeriod),
		GracefulShutdownTimeout: new(5 * time.Second),
	})
	if err != nil {
		return err
	}
	if o.Unfenced {
		f = nil
	}
	cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		AllowIdentity: clustercache.GuardedByAdmission, Fence: f,
		Client: clustercache.ClientOptions{UserAgent: o.Name, QPS: 10_000, Burst: 10_000},
	}, controller.Options{})
	if err != nil {
		return err
	}
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		var writing sync.WaitGroup
		for _, extension := range o.Extensions {
			for range 2 {
				writing.Go(func() { write(ctx, cc, client.ObjectKey{Name: extension}) })
			}
		}
		writing.Wait()
		return nil
	})); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// newLock returns the lock of all replicas, as controller-runtime makes it.
func newLock(config *rest.Config, o options) (resourcelock.Interface, error) {
	config = rest.CopyConfig(config)
	config.Timeout = renewDeadline / 2
	if o.LeaseHost != "" {
		config.Host = o.LeaseHost
	}
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	coordination, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return resourcelock.New(resourcelock.LeasesResourceLock, "default", "replicas", core, coordination,
		resourcelock.ResourceLockConfig{Identity: o.Name})
}

// write writes as the tenant, again and again, and leaves the API server some room. Nothing in it cares
// for leases.
func write(ctx context.Context, cc clustercache.ClusterCache, extension client.ObjectKey) {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: extension.Name}}
	for n := 0; ctx.Err() == nil; n++ {
		c, err := cc.GetUncachedClient(ctx, extension)
		if err == nil {
			err = c.Patch(ctx, object, client.RawPatch("application/merge-patch+json",
				fmt.Appendf(nil, `{"data": {"n": "%d"}}`, n)))
		}
		_ = err // such as NotLeading
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// spin keeps a core busy until it is killed, for half a minute at most.
func spin() {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		continue
	}
}
