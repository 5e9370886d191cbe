package extensionsource

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/internal/coalesce"
	"github.com/latchkey-dev/latchkey/internal/hostcode"
	"github.com/latchkey-dev/latchkey/internal/metrics"
)

// Hub holds the consumers that listen. The zero value is ready to use. Its methods may be called
// from any goroutine.
type Hub struct {
	Name    string         // of the ClusterCache, for logs
	Metrics *metrics.Cache // counts the panics of map functions; may be nil

	changes coalesce.Hub[client.ObjectKey, event] // with the objects last seen
	looks   coalesce.Hub[struct{}, struct{}]      // see Look
}

// Changed notifies every consumer of a change to the extension. Changed never blocks. object is
// shared: do not change it.
func (h *Hub) Changed(object client.Object) {
	h.changes.Put(client.ObjectKeyFromObject(object), event{object: object})
}

// Look makes every consumer with a probeFailure check for episodes without success now.
func (h *Hub) Look() { h.looks.Put(struct{}{}, struct{}{}) }

// Extensions is the state that consumers read in addition to changes.
type Extensions interface {
	// Objects returns every known extension. The objects are shared.
	Objects() []client.Object
	// Unhealthy returns every known extension that is not connected, or whose last probe failed.
	Unhealthy() []Unhealthy
}

// Unhealthy is an extension without success.
type Unhealthy struct {
	Object client.Object
	Since  time.Time // time of the last success, or, without one, since the extension is known
}

// Listen delivers every known extension and then each extension that changes, until ctx is done.
// With a probeFailure, Listen also delivers an extension once per episode without success that
// lasts that long. deliver receives shared objects.
func (h *Hub) Listen(ctx context.Context, known Extensions, probeFailure time.Duration, deliver func(client.Object)) {
	h.begin(known).run(ctx, known, probeFailure, func(e event) { deliver(e.object) })
}

// consumer is one consumer of a hub.
type consumer struct {
	changes *coalesce.Subscription[client.ObjectKey, event]
	looks   *coalesce.Subscription[struct{}, struct{}]
}

// begin registers a consumer. From then on the consumer misses no change, so Start calls begin
// synchronously.
func (h *Hub) begin(known Extensions) consumer {
	c := consumer{h.changes.Subscribe(), h.looks.Subscribe()} // before Objects, so that no change is missed in between
	c.changes.PutMissing(byKey(known.Objects(), true))
	return c
}

// event is an extension to deliver.
type event struct {
	object client.Object
	first  bool // the extension was known before the consumer began, and has not changed since
}

// byKey returns an event for each of the objects.
func byKey(objects []client.Object, first bool) map[client.ObjectKey]event {
	keyed := make(map[client.ObjectKey]event, len(objects))
	for _, object := range objects {
		keyed[client.ObjectKeyFromObject(object)] = event{object, first}
	}
	return keyed
}

func (c consumer) run(ctx context.Context, known Extensions, probeFailure time.Duration, deliver func(event)) {
	defer c.changes.Close()
	defer c.looks.Close()
	var tick <-chan time.Time
	if probeFailure > 0 {
		ticker := time.NewTicker(min(max(probeFailure/20, time.Millisecond), 5*time.Second))
		defer ticker.Stop()
		tick = ticker.C
	}
	reported := episodes{}
	look := func() {
		var news []client.Object
		reported, news = reported.next(known.Unhealthy(), time.Now(), probeFailure)
		c.changes.PutMissing(byKey(news, false))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
			look()
		case <-c.looks.Signal():
			if probeFailure > 0 {
				look()
			}
		case <-c.changes.Signal():
		}
		for _, e := range c.changes.Take() {
			if ctx.Err() != nil {
				return
			}
			deliver(e)
		}
	}
}

// episodes are the episodes without success that were reported: extensions, with the time at which
// each episode began.
type episodes map[client.ObjectKey]time.Time

// next returns the episodes that have lasted at least long, and the extensions of those episodes
// that were not reported yet.
func (e episodes) next(unhealthy []Unhealthy, now time.Time, long time.Duration) (lasting episodes,
	news []client.Object) {
	lasting = episodes{}
	for _, u := range unhealthy {
		key := client.ObjectKeyFromObject(u.Object)
		if now.Sub(u.Since) < long {
			continue
		}
		lasting[key] = u.Since
		if since, known := e[key]; !known || !since.Equal(u.Since) {
			news = append(news, u.Object)
		}
	}
	return lasting, news
}

// Options configure a source.
type Options struct {
	ControllerName string        // for logs
	ProbeFailure   time.Duration // after this time without success the source delivers an event; 0 for never
}

// extensionSource is a source.TypedSource that notifies a controller of changes to extensions.
type extensionSource[request comparable] struct {
	options Options
	mapFunc handler.TypedMapFunc[client.Object, request]
	hub     *Hub
	known   Extensions
}

// New returns a source.
func New[request comparable](hub *Hub, known Extensions, options Options,
	mapFunc handler.TypedMapFunc[client.Object, request]) source.TypedSource[request] {
	return &extensionSource[request]{options: options, mapFunc: mapFunc, hub: hub, known: known}
}

// String returns the name of the source for the controller's log.
func (s *extensionSource[request]) String() string {
	return fmt.Sprintf("latchkey extension source of %s", s.options.ControllerName)
}

// Start starts delivery until ctx is done. Start does not block.
func (s *extensionSource[request]) Start(ctx context.Context,
	queue workqueue.TypedRateLimitingInterface[request]) error {
	if s.mapFunc == nil {
		return errors.Errorf("%s has no map function", s)
	}
	c := s.hub.begin(s.known)
	go c.run(ctx, s.known, s.options.ProbeFailure, func(e event) { s.deliver(ctx, queue, e) })
	return nil
}

// deliver maps one extension and adds the requests to the queue. A map function that panics loses
// the event only. Requests of a first event have a low priority, as those of controller-runtime's
// own sources: after a restart, a change does not wait for all extensions.
func (s *extensionSource[request]) deliver(ctx context.Context, queue workqueue.TypedRateLimitingInterface[request],
	e event) {
	caller := hostcode.Caller{
		Metrics: s.hub.Metrics,
		Logger: func() logr.Logger {
			return s.logger(ctx).WithValues("extension", klog.KObj(e.object), "consequence", "the event is lost")
		},
	}
	priorities, hasPriorities := queue.(priorityqueue.PriorityQueue[request])
	// the log has the error
	_ = caller.Call("the map function of an extension source", func() error {
		for _, request := range s.mapFunc(ctx, e.object.DeepCopyObject().(client.Object)) {
			if e.first && hasPriorities {
				priorities.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority)}, request)
				continue
			}
			queue.Add(request)
		}
		return nil
	})
}

func (s *extensionSource[request]) logger(ctx context.Context) logr.Logger {
	return log.FromContext(ctx).WithName(cmp.Or(s.hub.Name, "clustercache")).
		WithValues("controller", s.options.ControllerName)
}
