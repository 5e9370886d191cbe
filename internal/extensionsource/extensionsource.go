package extensionsource

import (
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

// Hub knows the consumers that listen. The zero value is ready. Its methods may be called from any
// goroutine.
type Hub struct {
	mu        sync.Mutex
	consumers map[*pending]struct{} // guarded by mu
}

// Changed tells every consumer that something happened to the extension. It never blocks. object is
// shared: do not change it.
func (h *Hub) Changed(object client.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.consumers {
		p.put(object)
	}
}

// Look has every consumer that asked for episodes without success look for them now.
func (h *Hub) Look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.consumers {
		select {
		case p.look <- struct{}{}:
		default: // it is about to
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

// Known is what there is to tell beside what changes.
type Known interface {
	// Objects returns every known extension. They are shared.
	Objects() []client.Object
	// Unhealthy returns every known extension that is not connected, or whose last probe failed.
	Unhealthy() []Unhealthy
}

// Unhealthy is an extension without success.
type Unhealthy struct {
	Object client.Object
	Since  time.Time // of the last success, or else since the extension is known
}

// Listen delivers what happens to extensions until ctx is done: first every known one, then what
// changes. With a probeFailure it also delivers an extension once per episode of no success for so
// long. deliver gets shared objects.
func (h *Hub) Listen(ctx context.Context, known Known, probeFailure time.Duration, deliver func(client.Object)) {
	h.begin(known).run(ctx, known, probeFailure, deliver)
}

// begin is the part of Listen that must not be late: from here on nothing is missed.
func (h *Hub) begin(known Known) *pending {
	p := &pending{hub: h, objects: map[client.ObjectKey]client.Object{}, signal: make(chan struct{}, 1),
		look: make(chan struct{}, 1)}
	h.add(p) // before Objects, so that nothing falls between
	p.putKnown(known.Objects())
	return p
}

// pending holds the extensions about which one consumer was not told yet: one entry each, however
// much happens to it.
type pending struct {
	hub *Hub

	mu      sync.Mutex
	objects map[client.ObjectKey]client.Object // guarded by mu; the last object seen
	signal  chan struct{}                      // holds a token when objects is not empty

	look chan struct{} // holds a token when it is to look for episodes without success
}

func (p *pending) put(object client.Object) {
	p.mu.Lock()
	p.objects[client.ObjectKeyFromObject(object)] = object
	p.mu.Unlock()
	p.wake()
}

// putKnown adds objects, unless something newer is pending already.
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
	default: // it is there already
	}
}

// take returns all that is pending and empties it.
func (p *pending) take() map[client.ObjectKey]client.Object {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.objects
	p.objects = map[client.ObjectKey]client.Object{}
	return taken
}

func (p *pending) run(ctx context.Context, known Known, probeFailure time.Duration, deliver func(client.Object)) {
	defer p.hub.remove(p)
	var tick <-chan time.Time
	if probeFailure > 0 {
		ticker := time.NewTicker(min(max(probeFailure/20, time.Millisecond), 5*time.Second))
		defer ticker.Stop()
		tick = ticker.C
	}
	told := episodes{}
	look := func() {
		var news []client.Object
		told, news = told.next(known.Unhealthy(), time.Now(), probeFailure)
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

// episodes are the episodes without success that were told, by the time they began.
type episodes map[client.ObjectKey]time.Time

// next returns the episodes that last for so long now, and the extensions of those that were not
// told yet.
func (e episodes) next(unhealthy []Unhealthy, now time.Time, long time.Duration) (told episodes, news []client.Object) {
	told = episodes{}
	for _, u := range unhealthy {
		key := client.ObjectKeyFromObject(u.Object)
		if now.Sub(u.Since) < long {
			continue
		}
		told[key] = u.Since
		if since, known := e[key]; !known || !since.Equal(u.Since) {
			news = append(news, u.Object)
		}
	}
	return told, news
}

// Options say who listens to what.
type Options struct {
	ControllerName string        // for logs
	ProbeFailure   time.Duration // 0 for none
}

// extensionSource is a source.TypedSource that tells a controller about extensions.
type extensionSource[request comparable] struct {
	options Options
	mapFunc handler.TypedMapFunc[client.Object, request]
	hub     *Hub
	known   Known
}

// New makes a source.
func New[request comparable](hub *Hub, known Known, options Options,
	mapFunc handler.TypedMapFunc[client.Object, request]) source.TypedSource[request] {
	return &extensionSource[request]{options: options, mapFunc: mapFunc, hub: hub, known: known}
}

// String names the source in the controller's log.
func (s *extensionSource[request]) String() string {
	return fmt.Sprintf("latchkey extension source of %s", s.options.ControllerName)
}

// Start delivers until ctx is done. It does not block.
func (s *extensionSource[request]) Start(ctx context.Context,
	queue workqueue.TypedRateLimitingInterface[request]) error {
	if s.mapFunc == nil {
		return errors.Errorf("%s has no map function", s)
	}
	p := s.hub.begin(s.known)
	go p.run(ctx, s.known, s.options.ProbeFailure, func(object client.Object) { s.deliver(ctx, queue, object) })
	return nil
}

// deliver maps one extension. A map function that panics loses its own event and nothing else.
func (s *extensionSource[request]) deliver(ctx context.Context, queue workqueue.TypedRateLimitingInterface[request],
	object client.Object) {
	defer func() {
		if cause := recover(); cause != nil {
			metrics.HandlerPanics.Inc()
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
	return log.FromContext(ctx).WithName("clustercache").WithValues("controller", s.options.ControllerName)
}
