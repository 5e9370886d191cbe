package clustercache

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/internal/extensionsource"
)

// GetExtensionSourceOption is an option of GetExtensionSource.
type GetExtensionSourceOption interface {
	// ApplyToGetExtensionSource applies the option.
	ApplyToGetExtensionSource(options *GetExtensionSourceOptions)
}

// GetExtensionSourceOptions are all options of GetExtensionSource together, for those who implement
// ClusterCache.
type GetExtensionSourceOptions struct {
	// ProbeFailure is after how long without success an event is wanted, 0 for never.
	ProbeFailure time.Duration
}

// ApplyToGetExtensionSource applies those that are set.
func (o GetExtensionSourceOptions) ApplyToGetExtensionSource(options *GetExtensionSourceOptions) {
	if o.ProbeFailure != 0 {
		options.ProbeFailure = o.ProbeFailure
	}
}

// WatchForProbeFailure also asks for an event when an extension had no success for so long, neither
// a probe nor a request of its own, and is not connected or its last probe was no success. What the
// probe was answered does not count: an extension whose reviews are answered 403 is still
// connected, and has no success. It is one event per source and episode, within a twentieth of the
// time, 5 s at the most. An episode ends with the next success. Up to HealthProbe.IdentityInterval,
// which is how long an idle identity goes without a success, the first probe that fails is told. 0
// is never; the last option given counts.
type WatchForProbeFailure time.Duration

// ApplyToGetExtensionSource applies the option.
func (w WatchForProbeFailure) ApplyToGetExtensionSource(options *GetExtensionSourceOptions) {
	options.ProbeFailure = time.Duration(w)
}

func (c *clusterCache) GetExtensionSource(controllerName string, mapFunc handler.MapFunc,
	opts ...GetExtensionSourceOption) source.Source {
	var options GetExtensionSourceOptions
	for _, opt := range opts {
		opt.ApplyToGetExtensionSource(&options)
	}
	return extensionsource.New(c.sources, known{c.set},
		extensionsource.Options{ControllerName: controllerName, ProbeFailure: options.ProbeFailure},
		handler.TypedMapFunc[client.Object, ctrl.Request](mapFunc))
}

// known is what there is to tell of a set.
type known struct{ *accessor.Set }

func (k known) Unhealthy() (list []extensionsource.Unhealthy) {
	k.EachUnhealthy(func(object client.Object, since time.Time) {
		list = append(list, extensionsource.Unhealthy{Object: object, Since: since})
	})
	return list
}

// TypedExtensionSource is GetExtensionSource for controllers whose requests are of another type. It
// works with every ClusterCache, the fake included.
func TypedExtensionSource[request comparable](cc ClusterCache, controllerName string,
	mapFunc handler.TypedMapFunc[client.Object, request],
	opts ...GetExtensionSourceOption) source.TypedSource[request] {
	return &typedExtensionSource[request]{cc: cc, controllerName: controllerName, mapFunc: mapFunc, opts: opts}
}

// typedExtensionSource adds the requests to the queue itself: the source below has a queue of
// another type.
type typedExtensionSource[request comparable] struct {
	cc             ClusterCache
	controllerName string
	mapFunc        handler.TypedMapFunc[client.Object, request]
	opts           []GetExtensionSourceOption
}

// String names the source in the controller's log.
func (s *typedExtensionSource[request]) String() string {
	return fmt.Sprintf("latchkey extension source of %s", s.controllerName)
}

// Start delivers until ctx is done. It does not block.
func (s *typedExtensionSource[request]) Start(ctx context.Context,
	queue workqueue.TypedRateLimitingInterface[request]) error {
	var mapFunc handler.MapFunc
	if s.mapFunc != nil {
		mapFunc = func(ctx context.Context, object client.Object) []ctrl.Request {
			for _, request := range s.mapFunc(ctx, object) {
				queue.Add(request)
			}
			return nil
		}
	}
	return s.cc.GetExtensionSource(s.controllerName, mapFunc, s.opts...).Start(ctx, nil)
}
