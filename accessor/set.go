package accessor

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	"github.com/puzpuzpuz/xsync/v4"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/internal/rooms"
	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/accessor/internal/workpool"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/degraded"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/statechanges"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// handlerTimeout is how long an accessor, or a set that shuts down, waits for the event handlers of
// other controllers, which informers call. A handler that hangs must not prevent the manager from
// stopping.
const handlerTimeout = 5 * time.Second

// denialRetry is how long a connect that was denied waits before it sends the review again.
var denialRetry = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Steps: 10, Jitter: 0.2}

// Removal is why there is to be no connection for an extension any more.
type Removal = lifecycle.Removal

// The removals that the reconciler knows of.
const (
	Deleted  = lifecycle.Deleted
	Filtered = lifecycle.Filtered
)

// Shared is what the sets of one manager use together: the TCP connections to each API server, what
// is known of its health and its kinds, and the pool whose limits hold for all of them. The zero
// value is ready to use.
type Shared struct {
	targets targets.Set
	pool    workpool.Pool
}

// Set holds the accessors of all extensions by key. The reconciler of clustercache owns the set:
// only the reconciler calls Reconcile, Remove and Run. All other methods may be called from any
// goroutine, and getters never block.
type Set struct {
	registry

	options     *Options
	lifecycle   lifecycle.Config
	connections connection.Options
	policy      targets.Policy
	shared      *Shared
	rooms       rooms.Set
	attempts    *workpool.Share
	tasks       workpool.TaskGroup
	grants      grants
	draining    sync.Map // *identityAccessor to struct{}: given up, with goroutines that may still run

	life context.Context // parent of everything; ends when Run does
	end  context.CancelCauseFunc
}

// NewSet returns an empty set. Run starts its background work.
func NewSet(options Options) *Set {
	life, end := context.WithCancelCause(context.Background())
	shared := options.Shared
	if shared == nil {
		shared = &Shared{}
	}
	if options.States == nil {
		options.States = &statechanges.Hub{}
	}
	s := &Set{
		registry: registry{
			byKey:         xsync.NewMap[client.ObjectKey, *identityAccessor](),
			notOwned:      xsync.NewMap[client.ObjectKey, NotOwned](),
			leads:         options.Leads,
			checkKey:      options.CheckKey,
			replicasShare: options.ReplicasShare,
		},
		options:  &options,
		life:     life,
		end:      end,
		shared:   shared,
		attempts: shared.pool.Share(),
		connections: connection.Options{
			Scheme:         options.Scheme,
			Cache:          options.Cache,
			Client:         options.Client,
			RBACWatcher:    options.RBACWatcher,
			Namespaces:     options.Namespaces,
			Logger:         options.Logger,
			TracerProvider: options.Tracer.Provider(),
			Fenced:         options.Metrics.Fenced,
			LiveGet:        options.Metrics.LiveGet,
		},
		lifecycle: lifecycle.Config{
			Probe:         options.HealthProbe,
			Backoff:       options.ConnectBackoff,
			DenialRetry:   denialRetry,
			AnswerTimeout: answerTimeout,
			TaskTimeout:   handlerTimeout,
			Shared:        options.ReplicasShare,
		},
		policy: targets.Policy{Probe: options.HealthProbe, FirstBackoff: options.ConnectBackoff.Duration},
	}
	s.connections.Tasks = &s.tasks
	s.grants = grants{set: s, changed: make(chan struct{}, 1)}
	if options.Cache.SharesIdentities() {
		s.connections.Rooms = &s.rooms
	}
	return s
}

// Run checks silent targets until ctx is done. Then Run ends every connection, and returns once
// nothing of the set runs any more.
func (s *Set) Run(ctx context.Context) error {
	defer s.options.Metrics.Export(s.metricsSnapshot)()
	var asking sync.WaitGroup
	defer asking.Wait()
	if s.options.Record {
		asking.Go(func() { s.grants.run(ctx) })
	}
	tick := time.NewTicker(max(s.options.HealthProbe.Interval/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.shutdown()
			return nil
		case now := <-tick.C:
			s.shared.targets.CheckSilent(now, &s.policy)
			s.reportUnseenChanges()
		}
	}
}

// metricsSnapshot returns the values that the metrics export.
func (s *Set) metricsSnapshot() metrics.Snapshot {
	p := metrics.Snapshot{
		Connections: map[metrics.Connection]int{},
		Degraded:    map[string]int{},
		Informers:   map[string]int{},
	}
	for _, reason := range degraded.Reasons {
		p.Degraded[string(reason)] = 0 // so that each has a series
	}
	if s.options.Record {
		p.Permissions = map[string]int{"used": 0, "refused": 0}
	}
	if s.options.ReplicasShare {
		p.Divided = &metrics.Division{}
		s.notOwned.Range(func(_ client.ObjectKey, extension NotOwned) bool {
			p.Divided.Add(extension.UID, false)
			return true
		})
	}
	count := func(scopes []scopedcache.ScopeState) {
		for _, scope := range scopes {
			if scope.State != scopedcache.StateLive { // not an informer
				p.Informers[string(scope.State)]++
			}
			p.Objects += scope.Objects
		}
	}
	count(s.rooms.Scopes())
	shared := map[string]bool{}
	s.each(func(a *identityAccessor) {
		if p.Divided != nil {
			p.Divided.Add(a.uid(), true)
		}
		published := a.published.Load()
		p.Connections[metrics.Connection{Phase: string(published.phase), Reason: string(published.reason)}]++
		p.Watches += a.watches.Len()
		if p.Permissions != nil {
			used, refused := a.countPermissions()
			p.Permissions["used"] += used
			p.Permissions["refused"] += refused
		}
		if problems := a.problems(); degraded.Is(problems) {
			p.Degraded[string(problems[0].Reason)]++
		}
		if published.conn != nil {
			count(published.conn.OwnScopes())
			if published.conn.UsesCache() {
				p.CacheUsers++
				if name := published.conn.SharedCache(); name == "" || !shared[name] {
					p.Caches, shared[name] = p.Caches+1, true
				}
			}
		}
		if s.options.PerExtension {
			p.Extensions = append(p.Extensions, metrics.Extension{
				Namespace:   a.key.Namespace,
				Name:        a.key.Name,
				Connected:   published.conn != nil,
				LastSuccess: a.state().Health.LastProbeSuccessTime,
			})
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
		a.leave(lifecycle.Removed{Why: lifecycle.Stopped, Cause: stopping})
	})
	s.draining.Range(func(key, _ any) bool { // requests under way have no more time
		key.(*identityAccessor).leave(lifecycle.Removed{Why: lifecycle.Stopped, Cause: stopping})
		return true
	})
	s.options.Logger.Info("Ended all connections", "connections", connected)
	s.end(lifecycle.Stopping(stopping))
	// accessors that Reconcile created meanwhile; Reconcile creates no more from now on
	s.each(func(a *identityAccessor) {
		a.leave(lifecycle.Removed{Why: lifecycle.Stopped, Cause: stopping})
	})
	s.attempts.Close()
	if !s.tasks.Wait(handlerTimeout) {
		s.options.Logger.Info("Stopped while event handlers of other controllers are still running", "waited",
			handlerTimeout)
	}
}

// Reconcile receives the identity that the extension connects as, or the error of resolving it, and
// starts the attempt that is due: a connect, a probe, or none. It never blocks. The result is the
// delay until the next call, or 0 if only a Wake or a change of the extension leads to one. lease
// is the term in which this replica may act for the extension, nil for any time.
func (s *Set) Reconcile(object client.Object, resolution identity.Resolution, err error,
	lease *fence.Term) time.Duration {
	key := client.ObjectKeyFromObject(object)
	found, ok := s.byKey.Load(key)
	if ok && found.belongsTo(object, lease) {
		return found.reconcile(object, resolution, err)
	}
	switch {
	case !ok:
	case found.lease != lease: // the lease ended and began again
		found.leave(found.leaseEnded())
	default: // the object was deleted and created again between two reconciles
		found.leave(lifecycle.Removed{Why: lifecycle.Deleted})
	}
	a := newAccessor(s, object, lease)
	s.byKey.Store(key, a)
	s.notOwned.Delete(key)
	if s.life.Err() != nil { // the set has ended; if the set ends later, shutdown finds the accessor
		a.leave(lifecycle.Removed{Why: lifecycle.Stopped, Cause: context.Cause(s.life)})
		return 0
	}
	a.followLease()
	return a.reconcile(object, resolution, err)
}

// Remove ends the connection of an extension that does not exist any more, or is not wanted, and
// deletes all state of the extension.
func (s *Set) Remove(key client.ObjectKey, why Removal) {
	if found, ok := s.byKey.Load(key); ok {
		found.leave(lifecycle.Removed{Why: why})
	}
	if _, was := s.notOwned.LoadAndDelete(key); was {
		s.options.States.Changed(key)
	}
}

// RemoveNotOwned gives up an extension that is another replica's, and remembers that it exists.
func (s *Set) RemoveNotOwned(object client.Object) {
	key := client.ObjectKeyFromObject(object)
	if found, ok := s.byKey.Load(key); ok {
		found.leave(lifecycle.GiveUp{Cause: errGivenUp})
	}
	s.noteNotOwned(key, notOwnedOf(object))
}

func (s *Set) noteNotOwned(key client.ObjectKey, extension NotOwned) {
	if was, _ := s.notOwned.LoadAndStore(key, extension); was != extension {
		s.options.States.Changed(key)
	}
}

// LeaseEnded ends the connection of an extension for which this replica has no lease any more.
func (s *Set) LeaseEnded(key client.ObjectKey) {
	if found, ok := s.byKey.Load(key); ok {
		found.leave(found.leaseEnded())
	}
}

// WakeDelay returns how long one of the given number of waiters delays its retry after the resource
// that all of them wait for is available again. The delay is random, up to 50 ms per waiter and 10
// s in total. The delays spread the retries, so that the resource receives no burst of requests.
func WakeDelay(waiters int) time.Duration { return targets.WakeDelay(waiters) }
