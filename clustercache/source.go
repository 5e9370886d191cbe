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

// GetExtensionSourceOptions are all options of GetExtensionSource together, for implementations of
// ClusterCache.
type GetExtensionSourceOptions struct {
	// ProbeFailure is the time without success after which the source delivers an event, 0 for
	// never.
	ProbeFailure time.Duration
}

// ApplyToGetExtensionSource applies the options that are set.
func (o GetExtensionSourceOptions) ApplyToGetExtensionSource(options *GetExtensionSourceOptions) {
	if o.ProbeFailure != 0 {
		options.ProbeFailure = o.ProbeFailure
	}
}

// WatchForProbeFailure adds an event for an extension that had no success for this duration:
// neither a probe nor a request of its own succeeded. The extension must also be disconnected, or
// its last probe was no success, whatever the answer. For example, an extension whose reviews are
// answered 403 is still connected, but has no success. 0 means never. The last option given
// applies.
//
// Each source delivers one event per episode without success. The event is late by at most a
// twentieth of the duration, and by 5 s at most. The next success ends an episode. An idle identity
// goes without a success for up to HealthProbe.IdentityInterval, so shorter durations cause an
// event at the first probe that fails.
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
	return extensionsource.New(c.sources, sourceAdapter{c.set},
		extensionsource.Options{ControllerName: controllerName, ProbeFailure: options.ProbeFailure},
		handler.TypedMapFunc[client.Object, ctrl.Request](mapFunc))
}

// sourceAdapter gives the extensions of a set for the sources.
type sourceAdapter struct{ *accessor.Set }

func (k sourceAdapter) Unhealthy() (list []extensionsource.Unhealthy) {
	k.EachUnhealthy(func(object client.Object, since time.Time) {
		list = append(list, extensionsource.Unhealthy{Object: object, Since: since})
	})
	return list
}

// TypedExtensionSource is GetExtensionSource for controllers whose requests are of another type.
// TypedExtensionSource works with every ClusterCache, the fake included.
func TypedExtensionSource[request comparable](cc ClusterCache, controllerName string,
	mapFunc handler.TypedMapFunc[client.Object, request],
	opts ...GetExtensionSourceOption) source.TypedSource[request] {
	return &typedExtensionSource[request]{cc: cc, controllerName: controllerName, mapFunc: mapFunc, opts: opts}
}

// typedExtensionSource adds the requests to the queue itself, because the wrapped source has a
// queue of another type.
type typedExtensionSource[request comparable] struct {
	cc             ClusterCache
	controllerName string
	mapFunc        handler.TypedMapFunc[client.Object, request]
	opts           []GetExtensionSourceOption
}

// String returns the name of the source for the controller's log.
func (s *typedExtensionSource[request]) String() string {
	return fmt.Sprintf("latchkey extension source of %s", s.controllerName)
}

// Start starts delivery until ctx is done. Start does not block.
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
