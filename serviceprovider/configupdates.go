package serviceprovider

import (
	"context"
	"reflect"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// latestEvent keeps the newest event until it is delivered. Its zero value is empty.
type latestEvent struct {
	mu      sync.Mutex
	event   *event.GenericEvent // guarded by mu; nil after delivery
	changed chan struct{}       // guarded by mu; closed by the next set; nil while no goroutine waits
}

// set replaces the event. set never blocks.
func (l *latestEvent) set(e event.GenericEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.event = &e
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// next returns the event to deliver, nil if there is none, and a channel that is closed when there
// is a newer one.
func (l *latestEvent) next() (*event.GenericEvent, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.event, l.changed
}

// delivered removes the event, unless there is a newer one.
func (l *latestEvent) delivered(e *event.GenericEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.event == e {
		l.event = nil
	}
}

// deliver sends each newest event until ctx is done. A receiver that is slow gets the newest event
// when it is ready, and none of those before.
func (l *latestEvent) deliver(ctx context.Context, receiver chan<- event.GenericEvent) error {
	for {
		newest, changed := l.next()
		to := receiver
		var e event.GenericEvent
		if newest == nil {
			to = nil // nothing to send
		} else {
			e = *newest
		}
		select {
		case to <- e:
			l.delivered(newest)
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// currentConfig is the config that a provider works with.
type currentConfig[C Config] struct {
	mu     sync.Mutex
	config C    // guarded by mu; zero while exists is false
	exists bool // guarded by mu
	known  bool // guarded by mu; whether config and exists say anything yet
}

// set replaces the config; exists is false if it is gone.
func (c *currentConfig[C]) set(config C, exists bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.config, c.exists, c.known = config, exists, true
}

// get returns a copy of the config, or the zero value.
func (c *currentConfig[C]) get() (config C, exists, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exists {
		config = c.config.DeepCopyObject().(C)
	}
	return config, c.exists, c.known
}

// isNil reports whether the object is nil, or a nil pointer.
func isNil(object client.Object) bool {
	if object == nil {
		return true
	}
	value := reflect.ValueOf(object)
	return value.Kind() == reflect.Pointer && value.IsNil()
}
