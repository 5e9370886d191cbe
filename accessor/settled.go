package accessor

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// settleInterval is how often Settled looks.
const settleInterval = 20 * time.Millisecond

// Settled returns when each of the extensions is connected, or has been tried once, or is not known
// any more. An extension that is not known yet counts as known if wanted reports true.
func (s *Set) Settled(ctx context.Context, extensions []client.ObjectKey, wanted func(client.ObjectKey) bool) error {
	tick := time.NewTicker(settleInterval)
	defer tick.Stop()
	for {
		for len(extensions) > 0 && s.settled(extensions[0], wanted) {
			extensions = extensions[1:]
		}
		if len(extensions) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (s *Set) settled(key client.ObjectKey, wanted func(client.ObjectKey) bool) bool {
	a, ok := s.byKey.Load(key)
	if !ok {
		return !wanted(key)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.machine.Settled()
}
