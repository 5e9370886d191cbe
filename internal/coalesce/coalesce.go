package coalesce

import (
	"maps"
	"sync"
)

// Hub reports changes to its subscriptions. The zero value is ready to use. Its methods may be
// called from any goroutine.
type Hub[K comparable, V any] struct {
	mu            sync.Mutex
	subscriptions map[*Subscription[K, V]]struct{} // guarded by mu
}

// Put reports a change to every subscription. A value that a subscriber has not taken yet is
// replaced.
func (h *Hub[K, V]) Put(key K, value V) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subscriptions {
		s.Put(key, value)
	}
}

// HasSubscribers reports whether any subscription is open.
func (h *Hub[K, V]) HasSubscribers() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subscriptions) > 0
}

// Subscribe returns a subscription, which misses no change from now on. The caller closes it.
func (h *Hub[K, V]) Subscribe() *Subscription[K, V] {
	s := &Subscription[K, V]{hub: h, pending: map[K]V{}, signal: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subscriptions == nil {
		h.subscriptions = map[*Subscription[K, V]]struct{}{}
	}
	h.subscriptions[s] = struct{}{}
	return s
}

// Subscription holds what one subscriber has not taken yet.
type Subscription[K comparable, V any] struct {
	hub    *Hub[K, V]
	signal chan struct{} // holds a token when pending is not empty

	mu      sync.Mutex
	pending map[K]V // guarded by mu
}

// Signal receives a value when there is something to take. There may be nothing, though, when it
// was taken just before.
func (s *Subscription[K, V]) Signal() <-chan struct{} { return s.signal }

// Put adds a change for this subscription alone.
func (s *Subscription[K, V]) Put(key K, value V) {
	s.mu.Lock()
	s.pending[key] = value
	s.mu.Unlock()
	s.wake()
}

// PutMissing adds values for this subscription alone, but no value whose key has a newer one.
func (s *Subscription[K, V]) PutMissing(values map[K]V) {
	if len(values) == 0 {
		return
	}
	s.mu.Lock()
	newer := s.pending
	s.pending = maps.Clone(values)
	maps.Copy(s.pending, newer)
	s.mu.Unlock()
	s.wake()
}

func (s *Subscription[K, V]) wake() {
	select {
	case s.signal <- struct{}{}:
	default: // the token is there already
	}
}

// Take returns what has changed since the last Take.
func (s *Subscription[K, V]) Take() map[K]V {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.pending
	s.pending = map[K]V{}
	return taken
}

// Close ends the subscription.
func (s *Subscription[K, V]) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.subscriptions, s)
}
