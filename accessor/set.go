package accessor

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

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
	options   *Options
	lifecycle lifecycle.Config
	accessors sync.Map // client.ObjectKey to *identityAccessor
	targets   targets.Set
	pool      workpool.Pool
	owned     workpool.TaskGroup
	unknown   atomic.Pointer[unknownExtensions]

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
	found, ok := s.accessors.Load(key)
	if ok && found.(*identityAccessor).isOf(object) {
		return found.(*identityAccessor).reconcile(object, resolved, err)
	}
	if ok {
		s.Remove(key, Deleted) // and created again, before anybody looked
	}
	a := newAccessor(s, key)
	s.accessors.Store(key, a)
	if s.life.Err() != nil { // the set has ended; if it ends from now on, it finds the accessor
		s.accessors.Delete(key)
		return 0
	}
	return a.reconcile(object, resolved, err)
}

// Remove ends the extension's connection and forgets everything about it.
func (s *Set) Remove(key client.ObjectKey, reason Reason) {
	if found, ok := s.accessors.LoadAndDelete(key); ok {
		found.(*identityAccessor).remove(reason, nil)
	}
}

// WakeDelay is how long one of so many waiters for the same thing, which is back, waits on: a
// random time of up to 50 ms per waiter and 10 s in all, so that what is back meets no storm.
func WakeDelay(waiters int) time.Duration { return targets.WakeDelay(waiters) }

func (s *Set) each(f func(*identityAccessor)) {
	s.accessors.Range(func(_, value any) bool {
		f(value.(*identityAccessor))
		return true
	})
}

// unknownExtensions is why extensions are unknown, if there is more to say than that they are.
type unknownExtensions struct {
	reason Reason
	cause  error
}

// MayNotRead notes why the host operator may not read what extensions there are; nil if it may.
// Extensions that are unknown then have the reason OperatorForbidden.
func (s *Set) MayNotRead(cause error) {
	if cause == nil {
		s.unknown.Store(nil)
		return
	}
	s.unknown.Store(&unknownExtensions{reason: OperatorForbidden, cause: cause})
}

func (s *Set) find(key client.ObjectKey) (*identityAccessor, error) {
	found, ok := s.accessors.Load(key)
	if !ok {
		if u := s.unknown.Load(); u != nil {
			return nil, &NotConnectedError{Extension: key, Reason: u.reason, Cause: u.cause}
		}
		return nil, &NotConnectedError{Extension: key, Reason: NotStarted, Cause: errUnknown}
	}
	return found.(*identityAccessor), nil
}

// connected is the way of getters: one map load and one atomic load.
func (s *Set) connected(key client.ObjectKey) (*connection, error) {
	_, conn, err := s.connectedAccessor(key)
	return conn, err
}

func (s *Set) clients(key client.ObjectKey) (*clients, error) {
	a, err := s.find(key)
	if err != nil {
		return nil, err
	}
	return a.published.Load().clients()
}

// GetClient returns the client whose reads are cached, or a *NotConnectedError.
func (s *Set) GetClient(key client.ObjectKey) (client.Client, error) {
	h, err := s.clients(key)
	if err != nil {
		return nil, err
	}
	return h.client, nil
}

// GetReader returns the cached reader, or a *NotConnectedError.
func (s *Set) GetReader(key client.ObjectKey) (client.Reader, error) {
	h, err := s.clients(key)
	if err != nil {
		return nil, err
	}
	return h.cache, nil
}

// GetUncachedClient returns the client that asks the API server, or a *NotConnectedError.
func (s *Set) GetUncachedClient(key client.ObjectKey) (client.Client, error) {
	h, err := s.clients(key)
	if err != nil {
		return nil, err
	}
	return h.live, nil
}

// GetRESTConfig returns a copy of the connection's config, or a *NotConnectedError.
func (s *Set) GetRESTConfig(key client.ObjectKey) (*rest.Config, error) {
	conn, err := s.connected(key)
	if err != nil {
		return nil, err
	}
	return conn.restConfig(), nil
}

// GetCluster returns the connection as a cluster.Cluster, or a *NotConnectedError.
func (s *Set) GetCluster(key client.ObjectKey) (cluster.Cluster, error) {
	conn, err := s.connected(key)
	if err != nil {
		return nil, err
	}
	return conn.cluster()
}

// Watch registers a watch; see clustercache.ClusterCache.
func (s *Set) Watch(ctx context.Context, key client.ObjectKey, watcher Watcher) error {
	a, conn, err := s.connectedAccessor(key)
	if err != nil {
		return err
	}
	return a.watches.Watch(ctx, conn, watcher)
}

// WatchContent registers the watches of a content; see clustercache.ClusterCache.
func (s *Set) WatchContent(ctx context.Context, key client.ObjectKey, content ContentWatch) error {
	a, conn, err := s.connectedAccessor(key)
	if err != nil {
		return err
	}
	return a.watches.WatchContent(ctx, conn, content)
}

func (s *Set) connectedAccessor(key client.ObjectKey) (*identityAccessor, *connection, error) {
	a, err := s.find(key)
	if err != nil {
		return nil, nil, err
	}
	published := a.published.Load()
	if published.conn == nil {
		return nil, nil, published.err
	}
	return a, published.conn, nil
}

// Unwatch ends a watch, or takes dependents from it. What is not registered is no error.
func (s *Set) Unwatch(ctx context.Context, key client.ObjectKey, name string, dependents ...types.UID) {
	if a, err := s.find(key); err == nil {
		a.watches.Unwatch(ctx, name, dependents...)
	}
}

// State returns a snapshot of the extension's connection; false if the extension is unknown.
func (s *Set) State(key client.ObjectKey) (ConnectionState, bool) {
	a, err := s.find(key)
	if err != nil {
		return ConnectionState{}, false
	}
	return a.state(), true
}

// States returns a snapshot of all connections, sorted by key.
func (s *Set) States() []ConnectionState {
	var states []ConnectionState
	s.each(func(a *identityAccessor) { states = append(states, a.state()) })
	slices.SortFunc(states, func(x, y ConnectionState) int {
		return strings.Compare(x.Extension.Namespace+"\x00"+x.Extension.Name, y.Extension.Namespace+"\x00"+y.Extension.Name)
	})
	return states
}

// Object returns the extension as last reconciled, nil if it is unknown. It is shared: do not
// change it.
func (s *Set) Object(key client.ObjectKey) client.Object {
	a, err := s.find(key)
	if err != nil {
		return nil
	}
	return a.lastObject()
}

// Objects returns every known extension as last reconciled. They are shared: do not change them.
func (s *Set) Objects() []client.Object {
	var objects []client.Object
	s.each(func(a *identityAccessor) {
		if object := a.lastObject(); object != nil {
			objects = append(objects, object)
		}
	})
	return objects
}

// EachUnhealthy calls f for every known extension that is not connected, or whose last probe
// failed, with the time of its last success, or else since when it is known.
func (s *Set) EachUnhealthy(f func(object client.Object, since time.Time)) {
	s.each(func(a *identityAccessor) {
		if object, since, unhealthy := a.unhealthy(); unhealthy {
			f(object, since)
		}
	})
}
