package clusterapi

import (
	"context"
	"fmt"
	"time"

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

// GetHealthCheckingState returns the results of probes, and zero for a cluster that is not known. A
// cluster without a valid kubeconfig cannot be probed. Cluster API tries to connect to it twice a
// minute, and counts these tries as failures, so they are counted here, too.
func (c *clusterCache) GetHealthCheckingState(ctx context.Context,
	cluster client.ObjectKey) clustercache.HealthCheckingState {
	state, known := c.connections.GetConnectionState(ctx, cluster)
	if !known {
		return clustercache.HealthCheckingState{}
	}
	return health(state, time.Now())
}

// health returns what Cluster API's state would be.
func health(state latchkey.ConnectionState, now time.Time) clustercache.HealthCheckingState {
	result := clustercache.HealthCheckingState{
		LastProbeTime:        state.Health.LastProbeTime,
		LastProbeSuccessTime: state.Health.LastProbeSuccessTime,
		ConsecutiveFailures:  state.Health.ConsecutiveFailures,
	}
	if state.Phase != latchkey.PhaseDisconnected || state.Starting() || state.DisconnectedSince.IsZero() {
		return result
	}
	tries := int(now.Sub(state.DisconnectedSince) / retryInterval) // after the first one
	if last := state.DisconnectedSince.Add(time.Duration(tries) * retryInterval); last.After(result.LastProbeTime) {
		result.LastProbeTime = last
	}
	result.ConsecutiveFailures = max(result.ConsecutiveFailures, tries+1)
	return result
}
