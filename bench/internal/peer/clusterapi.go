package peer

import (
	"context"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// clusterAPIPeer is Cluster API's clustercache, set up as in its own manager: 100 workers, and a
// cache of the Secrets with kubeconfigs only. Unlike there, the manager's cache drops managed
// fields, because latchkey's does so here too.
type clusterAPIPeer struct {
	config *rest.Config
	fleet  Fleet
	cache  clustercache.ClusterCache
	keys   []client.ObjectKey
}

func (p *clusterAPIPeer) Connect(ctx context.Context, n int) error {
	scheme, err := NewScheme()
	if err != nil {
		return err
	}
	ofClusters, err := labels.NewRequirement(v1beta2.ClusterNameLabel, selection.Exists, nil)
	if err != nil {
		return errors.WithStack(err)
	}
	mgr, err := ctrl.NewManager(p.config, ctrl.Options{
		Scheme:  scheme,
		Metrics: server.Options{BindAddress: "0"},
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Secret{}: {Label: labels.NewSelector().Add(*ofClusters)},
			}},
	})
	if err != nil {
		return errors.WithStack(err)
	}
	p.cache, err = clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient:  mgr.GetClient(),
		ClusterFilter: func(c *v1beta2.Cluster) bool { return p.fleet.has(c.Name, n) },
		Client:        clustercache.ClientOptions{UserAgent: "bench-clusterapi", QPS: 1000, Burst: 1000},
	}, controller.Options{MaxConcurrentReconciles: 100})
	if err != nil {
		return err
	}
	for tenant := range n {
		p.keys = append(p.keys, client.ObjectKey{Namespace: Namespace, Name: p.fleet.Name(tenant)})
	}
	go func() { _ = mgr.Start(ctx) }() // until the process ends
	return waitFor(ctx, p.keys, func(key client.ObjectKey) bool {
		_, err := p.cache.GetClient(ctx, key)
		return err == nil
	})
}

func (p *clusterAPIPeer) GetClient(ctx context.Context, tenant int) (client.Client, error) {
	return p.cache.GetClient(ctx, p.keys[tenant])
}

func (p *clusterAPIPeer) Cache(context.Context, int) (cache.Cache, error) { return nil, ErrCannot }

// Host implements Peer.
func (p *clusterAPIPeer) Host(tenant int) (client.Object, error) {
	return &v1beta2.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: p.fleet.Name(tenant)},
		Spec: v1beta2.ClusterSpec{InfrastructureRef: v1beta2.ContractVersionedObjectReference{
			APIGroup: "bench.example.com",
			Kind:     "Bench",
			Name:     p.fleet.Name(tenant),
		}},
	}, nil
}
