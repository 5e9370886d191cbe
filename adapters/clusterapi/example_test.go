package clusterapi_test

import (
	"context"

	"sigs.k8s.io/cluster-api/core/setup"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	clustercache "github.com/latchkey-dev/latchkey/adapters/clusterapi"
)

// The set-up of Cluster API's own manager.
func ExampleSetupWithManager() {
	_ = func(ctx context.Context, mgr manager.Manager, secrets client.Client) (clustercache.ClusterCache, error) {
		return clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			SecretClient: secrets,
			Cache:        setup.ClusterCacheCacheOptions(),
			Client:       setup.ClusterCacheClientOptions("my-provider", 20, 30),
		}, controller.Options{MaxConcurrentReconciles: 10})
	}
}
