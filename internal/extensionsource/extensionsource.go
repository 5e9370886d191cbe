package extensionsource

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/internal/metrics"
)

// Hub holds the consumers that listen. The zero value is ready to use. Its methods may be called
// from any goroutine.
type Hub struct {
	Name    string         // of the ClusterCache, for logs
	Metrics *metrics.Cache // counts the panics of map functions; may be nil

	mu        sync.Mutex
	consumers map[*pending]struct{} // guarded by mu
}

// Changed notifies every consumer of a change to the extension. Changed never blocks. object is
// shared: do not change it.
func (h *Hub) Changed(object client.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.consumers {
		p.put(object)
	}
}

// Look makes every consumer with a probeFailure check for episodes without success now.
func (h *Hub) Look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.consumers {
		select {
		case p.look <- struct{}{}:
		default: // a check is pending already
		}
	}
}

func (h *Hub) add(p *pending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.consumers == nil {
		h.consumers = map[*pending]struct{}{}
	}
	h.consumers[p] = struct{}{}
}

func (h *Hub) remove(p *pending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.consumers, p)
}

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
	h.begin(known).run(ctx, known, probeFailure, deliver)
}

// begin registers a consumer. From then on the consumer misses no change, so Start calls begin
// synchronously.
func (h *Hub) begin(known Extensions) *pending {
	p := &pending{hub: h, objects: map[client.ObjectKey]client.Object{}, signal: make(chan struct{}, 1),
		look: make(chan struct{}, 1)}
	h.add(p) // before Objects, so that no change is missed in between
	p.putKnown(known.Objects())
	return p
}

// pending holds the extensions that one consumer has not received yet: one entry each, regardless
// of the number of changes.
type pending struct {
	hub *Hub

	mu      sync.Mutex
	objects map[client.ObjectKey]client.Object // guarded by mu; the last object seen
	signal  chan struct{}                      // holds a token when objects is not empty

	look chan struct{} // holds a token when run is to check for episodes without success
}

func (p *pending) put(object client.Object) {
	p.mu.Lock()
	p.objects[client.ObjectKeyFromObject(object)] = object
	p.mu.Unlock()
	p.wake()
}

// putKnown adds objects, unless a newer version is pending already.
func (p *pending) putKnown(objects []client.Object) {
	if len(objects) == 0 {
		return
	}
	p.mu.Lock()
	for _, object := range objects {
		if _, newer := p.objects[client.ObjectKeyFromObject(object)]; !newer {
			p.objects[client.ObjectKeyFromObject(object)] = object
		}
	}
	p.mu.Unlock()
	p.wake()
}

func (p *pending) wake() {
	select {
	case p.signal <- struct{}{}:
	default: // the token is there already
	}
}

// take returns all pending extensions and clears the set.
func (p *pending) take() map[client.ObjectKey]client.Object {
	p.mu.Lock()
	defer p.mu.Unlock()
	objects := p.objects
	p.objects = map[client.ObjectKey]client.Object{}
	return objects
}

func (p *pending) run(ctx context.Context, known Extensions, probeFailure time.Duration, deliver func(client.Object)) {
	defer p.hub.remove(p)
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
		p.putKnown(news)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
			look()
		case <-p.look:
			if probeFailure > 0 {
				look()
			}
		case <-p.signal:
		}
		for _, object := range p.take() {
			if ctx.Err() != nil {
				return
			}
			deliver(object)
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
	p := s.hub.begin(s.known)
	go p.run(ctx, s.known, s.options.ProbeFailure, func(object client.Object) { s.deliver(ctx, queue, object) })
	return nil
}

// deliver maps one extension and adds the requests to the queue. A map function that panics loses
// only its own event.
func (s *extensionSource[request]) deliver(ctx context.Context, queue workqueue.TypedRateLimitingInterface[request],
	object client.Object) {
	defer func() {
		if cause := recover(); cause != nil {
			s.hub.Metrics.HandlerPanicked()
			s.logger(ctx).Error(errors.Errorf("%v", cause),
				"The map function of an extension source panicked; its event is lost",
				"extension", klog.KObj(object), "stack", string(debug.Stack()))
		}
	}()
	for _, request := range s.mapFunc(ctx, object.DeepCopyObject().(client.Object)) {
		queue.Add(request)
	}
}

func (s *extensionSource[request]) logger(ctx context.Context) logr.Logger {
	return log.FromContext(ctx).WithName(cmp.Or(s.hub.Name, "clustercache")).
		WithValues("controller", s.options.ControllerName)
}
