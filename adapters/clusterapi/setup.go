package clusterapi

import (
	"context"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	latchkey "github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
)

const (
	// retryInterval is the wait between connects that fail, as in Cluster API.
	retryInterval = 30 * time.Second
	// probeInterval is the time between probes, as in Cluster API. Each verifies the credential, so
	// that LastProbeSuccessTime is not older than there.
	probeInterval = 10 * time.Second
)

// SetupWithManager adds a reconciler to the manager that keeps a connection to each Cluster whose
// infrastructure is provisioned, by the kubeconfig in the Secret NAME-kubeconfig. The options mean
// what they mean in Cluster API; the package documentation has the differences. The connections end
// with the manager.
func SetupWithManager(ctx context.Context, mgr manager.Manager, options Options,
	controllerOptions controller.Options) (ClusterCache, error) {
	switch {
	case options.SecretClient == nil:
		return nil, errors.New("options.SecretClient must be set")
	case options.Client.UserAgent == "":
		return nil, errors.New("options.Client.UserAgent must be set")
	}
	connections, err := latchkey.SetupWithManager(ctx, mgr, translate(options), controllerOptions)
	if err != nil {
		return nil, errors.Wrap(err, "failed setting up ClusterCache with a controller manager")
	}
	c := &clusterCache{connections: connections}
	if err := mgr.Add(everywhere(func(ctx context.Context) {
		connections.SubscribeStates(ctx, c.watches.forget(connections))
	})); err != nil {
		return nil, errors.Wrap(err, "failed setting up ClusterCache with a controller manager")
	}
	return c, nil
}

// everywhere is a Runnable that needs no leader, as the connections of controller.Options with
// NeedLeaderElection false do not.
type everywhere func(context.Context)

var _ manager.LeaderElectionRunnable = everywhere(nil)

// Start implements manager.Runnable.
func (f everywhere) Start(ctx context.Context) error {
	f(ctx)
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everywhere) NeedLeaderElection() bool { return false }

// translate returns latchkey's options that mean the same.
func translate(options Options) latchkey.Options {
	var indexes []latchkey.CacheOptionsIndex
	for _, index := range options.Cache.Indexes {
		indexes = append(indexes, latchkey.CacheOptionsIndex(index))
	}
	return latchkey.Options{
		Object:           &clusterv1.Cluster{},
		Credentials:      credential.KubeconfigSecrets(credential.KubeconfigOptions{}),
		WatchFilterValue: options.WatchFilterValue,
		Filter: func(object client.Object) bool {
			cluster, ok := object.(*clusterv1.Cluster)
			return ok && (options.ClusterFilter == nil || options.ClusterFilter(cluster)) &&
				ptr.Deref(cluster.Status.Initialization.InfrastructureProvisioned, false)
		},
		Cache: latchkey.CacheOptions{
			SyncPeriod:       options.Cache.SyncPeriod,
			DefaultTransform: options.Cache.DefaultTransform,
			ByObject:         options.Cache.ByObject,
			Indexes:          indexes,
		},
		Client: latchkey.ClientOptions{
			Timeout:   options.Client.Timeout,
			QPS:       options.Client.QPS,
			Burst:     options.Client.Burst,
			UserAgent: options.Client.UserAgent,
			Cache:     latchkey.ClientCacheOptions{DisableFor: options.Client.Cache.DisableFor},
		},
		HealthProbe: healthprobe.Options{
			Interval:                   probeInterval,
			IdentityInterval:           probeInterval,
			MaxIdentityProbesPerSecond: -1,
		},
		ConnectBackoff: wait.Backoff{Duration: retryInterval, Jitter: 0.2},
	}
}

var _ interface {
	Shutdown()
	SetConnectionCreationRetryInterval(interval time.Duration)
} = (*clusterCache)(nil)

// Shutdown does nothing: all connections end with the manager, which waits for that. Tests of
// Cluster API call it.
func (c *clusterCache) Shutdown() {}

// SetConnectionCreationRetryInterval does nothing. Tests of Cluster API call it to be connected
// soon after the kubeconfig is there, and here the Secret's creation ends the wait.
func (c *clusterCache) SetConnectionCreationRetryInterval(time.Duration) {}
