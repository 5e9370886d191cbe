package accessor

import (
	"context"
	"time"

	"github.com/pkg/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/accessor/internal/workpool"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/metrics"
)

// handlerPatience is how long a set that ends waits for handlers of other controllers, which
// informers call: one that hangs must not keep the manager from stopping.
const handlerPatience = 5 * time.Second

// Set keeps the accessors of all extensions by key. The reconciler of clustercache owns it: it
// alone calls Reconcile, Remove and Run. Everything else may be called from any goroutine, and
// getters never wait.
type Set struct {
	registry

	options   *Options
	lifecycle lifecycle.Config
	targets   targets.Set
	pool      workpool.Pool
	owned     workpool.TaskGroup

	life context.Context // parent of everything; ends when Run does
	end  context.CancelCauseFunc
}

// NewSet makes an empty set. It starts nothing; Run does.
func NewSet(options Options) *Set {
	life, end := context.WithCancelCause(context.Background())
	return &Set{
		options: &options, life: life, end: end,
		lifecycle: lifecycle.Config{Probe: options.HealthProbe, Backoff: options.ConnectBackoff},
		targets:   targets.Set{Probe: options.HealthProbe, FirstBackoff: options.ConnectBackoff.Duration},
	}
}

// Run keeps an eye on silent targets until ctx is done. Then it ends every connection, and returns
// once nothing of the set runs any more.
func (s *Set) Run(ctx context.Context) error {
	defer metrics.Add(s.metricsSnapshot)()
	tick := time.NewTicker(max(s.options.HealthProbe.Interval/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.shutdown()
			return nil
		case now := <-tick.C:
			s.targets.CheckSilent(now)
		}
	}
}

// metricsSnapshot is what metrics show.
func (s *Set) metricsSnapshot() metrics.Snapshot {
	p := metrics.Snapshot{Connections: map[metrics.Connection]int{}, Informers: map[string]int{}}
	s.each(func(a *identityAccessor) {
		published := a.published.Load()
		p.Connections[metrics.Connection{Phase: string(published.phase), Reason: string(published.reason)}]++
		p.Watches += a.watches.Len()
		if published.conn != nil {
			for _, scope := range published.conn.scopes() {
				p.Informers[string(scope.State)]++
				p.Objects += scope.Objects
			}
		}
		if s.options.Metrics.PerExtension {
			p.Extensions = append(p.Extensions, metrics.Extension{Namespace: a.key.Namespace, Name: a.key.Name,
				Connected: published.conn != nil, LastSuccess: a.state().Health.LastProbeSuccessTime})
		}
	})
	return p
}

func (s *Set) shutdown() {
	stopping := errors.New("the manager has stopped")
	connected := 0
	s.each(func(a *identityAccessor) {
		if a.published.Load().conn != nil {
			connected++
		}
		a.remove(NotStarted, stopping)
	})
	s.options.Logger.Info("Ended all connections", "connections", connected)
	s.end(&NotConnectedError{Reason: NotStarted, Since: time.Now(), Cause: stopping})
	// what Reconcile made meanwhile; it makes no more
	s.each(func(a *identityAccessor) { a.remove(NotStarted, stopping) })
	s.pool.Close()
	if !s.owned.Wait(handlerPatience) {
		s.options.Logger.Info("Stopped, although handlers of other controllers are still being called", "waited",
			handlerPatience)
	}
}

// Reconcile takes what the extension is to connect as, or why that is not known, and starts what is
// due: a connect, a probe, or nothing. It never waits. It returns after what time to call it again;
// 0 means when Wake is called or the extension changes.
func (s *Set) Reconcile(object client.Object, resolved credential.Resolution, err error) time.Duration {
	key := client.ObjectKeyFromObject(object)
	found, ok := s.byKey.Load(key)
	if ok && found.(*identityAccessor).isOf(object) {
		return found.(*identityAccessor).reconcile(object, resolved, err)
	}
	if ok {
		s.Remove(key, Deleted) // and created again, before anybody looked
	}
	a := newAccessor(s, key)
	s.byKey.Store(key, a)
	if s.life.Err() != nil { // the set has ended; if it ends from now on, it finds the accessor
		s.byKey.Delete(key)
		return 0
	}
	return a.reconcile(object, resolved, err)
}

// Remove ends the extension's connection and forgets everything about it.
func (s *Set) Remove(key client.ObjectKey, reason Reason) {
	if found, ok := s.byKey.LoadAndDelete(key); ok {
		found.(*identityAccessor).remove(reason, nil)
	}
}

// WakeDelay is how long one of so many waiters for the same thing, which is back, waits on: a
// random time of up to 50 ms per waiter and 10 s in all, so that what is back meets no storm.
func WakeDelay(waiters int) time.Duration { return targets.WakeDelay(waiters) }
