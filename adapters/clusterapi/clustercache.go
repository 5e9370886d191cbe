package clusterapi

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	latchkey "github.com/latchkey-dev/latchkey/clustercache"
)

// clusterCache is Cluster API's ClusterCache. All methods may be called from any goroutine. None
// does I/O, and only Watch waits: for the caller's own Watcher.
type clusterCache struct {
	connections latchkey.ClusterCache
	watches     watches
}

var _ clustercache.ClusterCache = (*clusterCache)(nil)

// notConnectedError is the error of a call for a cluster that is not connected.
type notConnectedError struct {
	call string // in Cluster API's words
	err  error  // latchkey's
}

func (e *notConnectedError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.call, clustercache.ErrClusterNotConnected, e.err)
}

// Unwrap returns Cluster API's error and latchkey's.
func (e *notConnectedError) Unwrap() []error {
	return []error{clustercache.ErrClusterNotConnected, e.err}
}

// get returns what a call of latchkey returned, or its error as one of Cluster API.
func get[T any](call string, result T, err error) (T, error) {
	if err != nil {
		var none T
		return none, &notConnectedError{call, err}
	}
	return result, nil
}

func (c *clusterCache) GetClient(ctx context.Context, cluster client.ObjectKey) (client.Client, error) {
	result, err := c.connections.GetClient(ctx, cluster)
	return get("error getting client", result, err)
}

// GetReader returns the client of GetClient, as Cluster API does: it reads the kinds of DisableFor
// from the API server.
func (c *clusterCache) GetReader(ctx context.Context, cluster client.ObjectKey) (client.Reader, error) {
	result, err := c.connections.GetClient(ctx, cluster)
	return get[client.Reader]("error getting client reader", result, err)
}

func (c *clusterCache) GetUncachedClient(ctx context.Context, cluster client.ObjectKey) (client.Client, error) {
	result, err := c.connections.GetUncachedClient(ctx, cluster)
	return get("error getting uncached client", result, err)
}

func (c *clusterCache) GetRESTConfig(ctx context.Context, cluster client.ObjectKey) (*rest.Config, error) {
	result, err := c.connections.GetRESTConfig(ctx, cluster)
	return get("error getting REST config", result, err)
}

func (c *clusterCache) GetHealthCheckingState(ctx context.Context,
	cluster client.ObjectKey) clustercache.HealthCheckingState {
	state := c.connections.GetHealthCheckingState(ctx, cluster)
	return clustercache.HealthCheckingState{
		LastProbeTime:        state.LastProbeTime,
		LastProbeSuccessTime: state.LastProbeSuccessTime,
		ConsecutiveFailures:  state.ConsecutiveFailures,
	}
}
