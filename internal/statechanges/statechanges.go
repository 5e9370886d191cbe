package statechanges

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Hub holds the subscribers. The zero value is ready to use. Its methods may be called from any
// goroutine.
type Hub struct {
	mu          sync.Mutex
	subscribers map[*pending]struct{} // guarded by mu
}

// Changed reports to every subscriber that the extension has another state. Changed never blocks,
// and may be called with locks held.
func (h *Hub) Changed(extension client.ObjectKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.subscribers {
		p.put(extension)
	}
}

// HasSubscribers reports whether there is a subscriber.
func (h *Hub) HasSubscribers() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subscribers) > 0
}

// Subscribe waits until ready is closed, unless it is nil. Then Subscribe calls f with the keys that
// known returns, which may be none, and after that with the keys of extensions whose states changed,
// until ctx is done. The keys are sorted. Calls are one at a time; what changes during a call is in
// the next one.
func (h *Hub) Subscribe(ctx context.Context, ready <-chan struct{}, known func() []client.ObjectKey,
	f func(keys []client.ObjectKey)) {
	p := &pending{keys: map[client.ObjectKey]struct{}{}, signal: make(chan struct{}, 1)}
	h.add(p) // before known, so that no change is missed in between
	defer h.remove(p)
	if ready != nil {
		select {
		case <-ctx.Done():
		case <-ready:
		}
	}
	p.put(known()...)
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return
		case <-p.signal:
		}
		if keys := p.take(); (first || len(keys) > 0) && ctx.Err() == nil {
			f(keys)
		}
	}
}

func (h *Hub) add(p *pending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subscribers == nil {
		h.subscribers = map[*pending]struct{}{}
	}
	h.subscribers[p] = struct{}{}
}

func (h *Hub) remove(p *pending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subscribers, p)
}

// pending holds the keys that one subscriber has not received yet.
type pending struct {
	signal chan struct{} // holds a token when keys is not empty

	mu   sync.Mutex
	keys map[client.ObjectKey]struct{} // guarded by mu
}

func (p *pending) put(keys ...client.ObjectKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range keys {
		p.keys[key] = struct{}{}
	}
	select {
	case p.signal <- struct{}{}:
	default: // the token is there already
	}
}

// take returns the pending keys, sorted, and forgets them.
func (p *pending) take() []client.ObjectKey {
	p.mu.Lock()
	taken := p.keys
	p.keys = map[client.ObjectKey]struct{}{}
	p.mu.Unlock()
	keys := make([]client.ObjectKey, 0, len(taken))
	for key := range taken {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(x, y client.ObjectKey) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return keys
}
