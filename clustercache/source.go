package clustercache

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// sources are the extension sources that have been started and not stopped.
type sources struct {
	mu      sync.Mutex
	started map[*pending]struct{} // guarded by mu
}

func (s *sources) add(p *pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started == nil {
		s.started = map[*pending]struct{}{}
	}
	s.started[p] = struct{}{}
}

func (s *sources) remove(p *pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.started, p)
}

// changed tells every source that something happened to the extension. It never blocks.
func (s *sources) changed(object client.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.started {
		p.put(object)
	}
}

// pending holds the extensions about which one source has not told yet: one entry each, however much happens to it.
type pending struct {
	mu      sync.Mutex
	objects map[client.ObjectKey]client.Object // guarded by mu; the last object seen
	signal  chan struct{}                      // holds a token when objects is not empty
}

func newPending() *pending {
	return &pending{objects: map[client.ObjectKey]client.Object{}, signal: make(chan struct{}, 1)}
}

func (p *pending) put(object client.Object) {
	p.mu.Lock()
	p.objects[client.ObjectKeyFromObject(object)] = object
	p.mu.Unlock()
	select {
	case p.signal <- struct{}{}:
	default: // it is there already
	}
}

// putKnown adds objects, unless something newer is pending already.
func (p *pending) putKnown(objects []client.Object) {
	for _, object := range objects {
		p.mu.Lock()
		_, newer := p.objects[client.ObjectKeyFromObject(object)]
		p.mu.Unlock()
		if !newer {
			p.put(object)
		}
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

// extensionSource is a source.TypedSource that tells a controller about extensions.
type extensionSource[request comparable] struct {
	controllerName string
	mapFunc        handler.TypedMapFunc[client.Object, request]
	sources        *sources
	known          func() []client.Object
}

func newExtensionSource[request comparable](controllerName string, mapFunc handler.TypedMapFunc[client.Object, request],
	sources *sources, known func() []client.Object) *extensionSource[request] {
	return &extensionSource[request]{controllerName: controllerName, mapFunc: mapFunc, sources: sources, known: known}
}

// String names the source in the controller's log.
func (s *extensionSource[request]) String() string {
	return fmt.Sprintf("latchkey extension source of %s", s.controllerName)
}

// Start delivers until ctx is done. It does not block.
func (s *extensionSource[request]) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[request]) error {
	if s.mapFunc == nil {
		return errors.Errorf("%s has no map function", s)
	}
	p := newPending()
	s.sources.add(p) // before known, so that nothing falls between
	p.putKnown(s.known())
	go func() {
		defer s.sources.remove(p)
		for {
			select {
			case <-ctx.Done():
				return
			case <-p.signal:
			}
			for _, object := range p.take() {
				if ctx.Err() != nil {
					return
				}
				s.deliver(ctx, queue, object)
			}
		}
	}()
	return nil
}

// deliver maps one extension. A map function that panics loses its own event and nothing else.
func (s *extensionSource[request]) deliver(ctx context.Context, queue workqueue.TypedRateLimitingInterface[request], object client.Object) {
	defer func() {
		if cause := recover(); cause != nil {
			s.logger(ctx).Error(errors.Errorf("%v", cause), "The map function of an extension source panicked",
				"extension", client.ObjectKeyFromObject(object), "stack", string(debug.Stack()))
		}
	}()
	for _, request := range s.mapFunc(ctx, object.DeepCopyObject().(client.Object)) {
		queue.Add(request)
	}
}

func (s *extensionSource[request]) logger(ctx context.Context) logr.Logger {
	return log.FromContext(ctx).WithName("clustercache").WithValues("controller", s.controllerName)
}
