package stateapi

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
)

// dropEnded lets this replica say that it does not have what it had in a term that is over. Another
// replica may have had it in the next term since, and shown that, while this one is late to say so:
// it has much to do, or was suspended.
func (m *merged) dropEnded() {
	var ended []client.ObjectKey
	m.mu.Lock()
	for key, lease := range m.leases {
		if lease.Err() != nil {
			ended = append(ended, key)
		}
	}
	m.mu.Unlock()
	for some := range slices.Chunk(ended, shownAtOnce) {
		m.mu.Lock()
		now := time.Now()
		for _, key := range some {
			if m.leases[key].Err() == nil { // it has it again, or not any more
				continue
			}
			m.forget(key)
			delete(m.leases, key)
			delete(m.said[m.self], key)
			m.view.Unclaim(m.self, key)
			m.showLocked(key, now, true)
		}
		m.mu.Unlock()
	}
}

// ownStore is a store of what this replica has, for the others. Who lists, or watches from now on,
// finds nothing of a term that was over by then.
type ownStore[T, TList runtime.Object] struct {
	*apiserver.MemoryStore[T, TList]
	merged *merged
}

// List implements apiserver.Lister.
func (s *ownStore[T, TList]) List(ctx apiserver.Context, options *metav1.ListOptions) (TList, error) {
	s.merged.dropEnded()
	return s.MemoryStore.List(ctx, options)
}

// Watch implements apiserver.Watcher. A watch may begin with what there is.
func (s *ownStore[T, TList]) Watch(ctx apiserver.Context, options *metav1.ListOptions) (
	<-chan apiserver.WatchEvent[T], error) {
	s.merged.dropEnded()
	return s.MemoryStore.Watch(ctx, options)
}
