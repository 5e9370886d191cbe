package statechanges

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/coalesce"
)

// Hub reports changes of states to its subscribers. The zero value is ready to use. Its methods may
// be called from any goroutine.
type Hub struct {
	changes coalesce.Hub[client.ObjectKey, struct{}]
}

// Changed reports to every subscriber that the extension has another state. Changed never blocks,
// and may be called with locks held.
func (h *Hub) Changed(extension client.ObjectKey) { h.changes.Put(extension, struct{}{}) }

// HasSubscribers reports whether there is a subscriber.
func (h *Hub) HasSubscribers() bool { return h.changes.HasSubscribers() }

// Subscribe waits until ready is closed, unless it is nil. Then Subscribe calls f with the keys
// that known returns, which may be none, and after that with the keys of extensions whose states
// changed, until ctx is done. The keys are sorted. Calls are one at a time; what changes during a
// call is in the next one.
func (h *Hub) Subscribe(ctx context.Context, ready <-chan struct{}, known func() []client.ObjectKey,
	f func(keys []client.ObjectKey)) {
	changes := h.changes.Subscribe() // before known, so that no change is missed in between
	defer changes.Close()
	if ready != nil {
		select {
		case <-ctx.Done():
		case <-ready:
		}
	}
	for _, key := range known() {
		changes.Put(key, struct{}{})
	}
	for first := true; ctx.Err() == nil; first = false {
		if keys := slices.SortedFunc(maps.Keys(changes.Take()), compareKeys); first || len(keys) > 0 {
			f(keys)
		}
		select {
		case <-ctx.Done():
		case <-changes.Signal():
		}
	}
}

func compareKeys(x, y client.ObjectKey) int {
	return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
}
