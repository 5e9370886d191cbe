package clusterapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	latchkey "github.com/latchkey-dev/latchkey/clustercache"
)

// GetClusterSource returns a source that calls mapFunc with a *Cluster that connected or
// disconnected, stayed disconnected for another reason, or was deleted; with each known one when
// the source starts; and, for each WatchForProbeFailure, with one that had no success for so long.
func (c *clusterCache) GetClusterSource(controllerName string,
	mapFunc func(context.Context, client.Object) []ctrl.Request,
	opts ...clustercache.GetClusterSourceOption) source.Source {
	var durations []time.Duration
	for _, opt := range opts {
		duration, ok := opt.(clustercache.WatchForProbeFailure)
		if !ok { // what it does with Cluster API's options is not exported there
			return source.Func(func(context.Context, workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
				return errors.Errorf("cluster source of %s: option %T is not supported, only WatchForProbeFailure is",
					controllerName, opt)
			})
		}
		durations = append(durations, time.Duration(duration))
	}
	if len(durations) == 0 {
		return c.connections.GetExtensionSource(controllerName, mapFunc)
	}
	var mapping sync.Mutex // as Cluster API, call mapFunc once at a time
	serial := func(ctx context.Context, cluster client.Object) []ctrl.Request {
		mapping.Lock()
		defer mapping.Unlock()
		return mapFunc(ctx, cluster)
	}
	if mapFunc == nil {
		serial = nil
	}
	var all sources
	for _, duration := range durations {
		all = append(all,
			c.connections.GetExtensionSource(controllerName, serial, latchkey.WatchForProbeFailure(duration)))
	}
	return all
}

// sources are several as one. Each of them adds a request for a cluster that connects, which is
// once in the queue until a worker takes it.
type sources []source.Source

// String returns the name of the sources for the controller's log.
func (s sources) String() string { return fmt.Sprint(s[0]) }

// Start starts all. It does not block.
func (s sources) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
	for _, each := range s {
		if err := each.Start(ctx, queue); err != nil {
			return err
		}
	}
	return nil
}
