package clusterapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fake"
)

// NewFakeClusterCache returns a ClusterCache for unit tests that knows one cluster, connected with
// workloadClient. Watch with one of the names in watchObjects succeeds and does nothing. With
// another name, the watcher's Watch gets a cache that reads and watches with workloadClient; in
// Cluster API it gets none.
func NewFakeClusterCache(workloadClient client.Client, clusterKey client.ObjectKey,
	watchObjects ...string) ClusterCache {
	connections := fake.NewFakeCache(workloadClient, clusterKey)
	connections.SetExtension(&clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: clusterKey.Namespace, Name: clusterKey.Name},
	})
	c := &clusterCache{connections: connections}
	c.watches.preset = map[client.ObjectKey]sets.Set[string]{clusterKey: sets.New(watchObjects...)}
	return c
}

// NewFakeEmptyClusterCache returns a ClusterCache for unit tests that knows no cluster.
func NewFakeEmptyClusterCache() ClusterCache {
	return &clusterCache{connections: fake.NewFakeEmptyCache()}
}
