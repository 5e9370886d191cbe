package peer

import (
	"context"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// LatchkeyPeer is a ClusterCache whose extensions name ServiceAccounts.
type LatchkeyPeer struct {
	config *rest.Config
	fleet  Fleet
	cache  clustercache.ClusterCache
	keys   []client.ObjectKey
	// WatchRBAC is set before Connect.
	WatchRBAC bool
}

// Connect implements Peer.
func (p *LatchkeyPeer) Connect(ctx context.Context, n int) error {
	scheme, err := NewScheme()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(p.config, ctrl.Options{
		Scheme:  scheme,
		Metrics: server.Options{BindAddress: "0"},
		Cache:   cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
	})
	if err != nil {
		return errors.WithStack(err)
	}
	p.cache, err = clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		Client:        clustercache.ClientOptions{UserAgent: "bench-latchkey", QPS: 1000, Burst: 1000},
		AllowIdentity: clustercache.GuardedByAdmission,
		Filter:        func(o client.Object) bool { return p.fleet.has(o.GetName(), n) },
		Cache:         clustercache.CacheOptions{WatchRBAC: p.WatchRBAC},
	}, controller.Options{})
	if err != nil {
		return err
	}
	for tenant := range n {
		p.keys = append(p.keys, client.ObjectKey{Name: p.fleet.Name(tenant)})
	}
	go func() { _ = mgr.Start(ctx) }() // until the process ends
	return waitFor(ctx, p.keys, func(key client.ObjectKey) bool {
		_, err := p.cache.GetRESTConfig(ctx, key)
		return err == nil
	})
}

// waitFor waits until all are connected. It asks ten times a second, and about those that are left
// only, so that the question costs the process next to nothing.
func waitFor(ctx context.Context, keys []client.ObjectKey, connected func(client.ObjectKey) bool) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		for len(keys) > 0 && connected(keys[0]) {
			keys = keys[1:]
		}
		if len(keys) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.WithStack(context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// GetClient implements Peer.
func (p *LatchkeyPeer) GetClient(ctx context.Context, tenant int) (client.Client, error) {
	return p.cache.GetClient(ctx, p.keys[tenant])
}

// Cache implements Peer.
func (p *LatchkeyPeer) Cache(ctx context.Context, tenant int) (cache.Cache, error) {
	c, err := p.cache.GetCluster(ctx, p.keys[tenant])
	if err != nil {
		return nil, err
	}
	return c.GetCache(), nil
}

// ClusterCache returns what latchkey alone offers.
func (p *LatchkeyPeer) ClusterCache() clustercache.ClusterCache { return p.cache }

// Key returns the key of a tenant's extension.
func (p *LatchkeyPeer) Key(tenant int) client.ObjectKey { return p.keys[tenant] }

// Host implements Peer.
func (p *LatchkeyPeer) Host(tenant int) (client.Object, error) {
	extension := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"namespace": Namespace, "serviceAccount": map[string]any{"name": p.fleet.Account(tenant)}}}}
	extension.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	extension.SetName(p.fleet.Name(tenant))
	return extension, nil
}
