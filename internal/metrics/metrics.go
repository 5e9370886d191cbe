package metrics

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Cache has the metrics of one ClusterCache. Its methods may be called from any goroutine. A nil
// *Cache counts nothing.
type Cache struct {
	name  string
	mu    sync.RWMutex
	ended bool // guarded by mu
}

// New returns the metrics of a ClusterCache of that name. Caches of one name add up.
func New(name string) *Cache { return &Cache{name: name} }

// Announce makes every collection report whether this process leads with a cache of that name,
// until end is called. Replicas that do not lead have no other metrics of a ClusterCache.
func (c *Cache) Announce() (end func()) {
	if c == nil {
		return func() {}
	}
	return all.announce(c.name)
}

// Results that alerts are about.
const (
	notUsed            = "NotUsed"
	tokenRequestFailed = "TokenRequestFailed"
)

// Export makes every collection of metrics call snapshot, until end is called. snapshot may be
// called from any goroutine. After end the cache counts nothing, and the series of its name are
// gone once no other cache of that name is exported.
func (c *Cache) Export(snapshot func() Snapshot) (end func()) {
	if c == nil {
		return func() {}
	}
	remove := all.add(c.name, snapshot) // first: from then on the end of another cache of that name deletes no series
	for _, histogram := range []*prometheus.HistogramVec{connectDuration, probeDuration, poolWait} {
		histogram.WithLabelValues(c.name)
	}
	handlerPanics.WithLabelValues(c.name)
	fenced.WithLabelValues(c.name)
	// Prometheus sees no increase from a series that begins with its first event.
	rotations.WithLabelValues(c.name, notUsed)
	tokenRequests.WithLabelValues(c.name, tokenRequestFailed)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ended = true
		remove()
	}
}

// ExportInformers makes every collection of metrics call snapshot for a scoped cache of that name,
// until end is called. A scoped cache has informers only.
func ExportInformers(name string, snapshot func() Snapshot) (end func()) {
	return all.add(name, snapshot)
}

// unlessEnded calls record, unless the series of the cache are gone: record would bring them back.
func (c *Cache) unlessEnded(record func()) {
	if c == nil {
		return
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if !c.ended {
		record()
	}
}

func (c *Cache) count(counter *prometheus.CounterVec, labels ...string) {
	c.unlessEnded(func() { counter.WithLabelValues(append([]string{c.name}, labels...)...).Inc() })
}

// observe records a duration. If the span of ctx is sampled, the duration is its exemplar.
func (c *Cache) observe(ctx context.Context, histogram *prometheus.HistogramVec, duration time.Duration,
	labels ...string) {
	c.unlessEnded(func() {
		observer := histogram.WithLabelValues(append([]string{c.name}, labels...)...)
		span := trace.SpanContextFromContext(ctx)
		if exemplars, ok := observer.(prometheus.ExemplarObserver); ok && span.IsSampled() {
			exemplars.ObserveWithExemplar(duration.Seconds(), prometheus.Labels{"trace_id": span.TraceID().String(),
				"span_id": span.SpanID().String()})
			return
		}
		observer.Observe(duration.Seconds())
	})
}

// Connected counts a finished connect. The result is Connected, or the reason of the failure.
func (c *Cache) Connected(result string) { c.count(connects, result) }

// ConnectTook records how long a connect took, without the wait for its turn in the pool.
func (c *Cache) ConnectTook(ctx context.Context, duration time.Duration) {
	c.observe(ctx, connectDuration, duration)
}

// Rotated counts the check of a connection's newer credential, by result.
func (c *Cache) Rotated(result string) { c.count(rotations, result) }

// Probed counts a finished probe, by result.
func (c *Cache) Probed(result string) { c.count(probes, result) }

// ProbeTook records how long a probe took, without the wait for its turn in the pool.
func (c *Cache) ProbeTook(ctx context.Context, duration time.Duration) {
	c.observe(ctx, probeDuration, duration)
}

// WaitedForTurn records how long a connect or probe waited for its turn in the pool.
func (c *Cache) WaitedForTurn(ctx context.Context, duration time.Duration) {
	c.observe(ctx, poolWait, duration)
}

// RequestedToken counts a finished TokenRequest, by result.
func (c *Cache) RequestedToken(result string) { c.count(tokenRequests, result) }

// Fenced counts a request that did not start, or was cut, because a term had ended.
func (c *Cache) Fenced() { c.count(fenced) }

// LiveGet counts a cached Get that went to the API server.
func (c *Cache) LiveGet() { c.count(liveGets) }

// Directions of moves.
const (
	taken   = "Taken"
	givenUp = "GivenUp"
)

// Took counts an extension that became this replica's.
func (c *Cache) Took() { c.count(moves, taken) }

// GaveUp counts an extension that this replica has given up.
func (c *Cache) GaveUp() { c.count(moves, givenUp) }

// TookShare records how long it took until the extensions of a share were served.
func (c *Cache) TookShare(ctx context.Context, duration time.Duration) {
	c.observe(ctx, moveDuration, duration, taken)
}

// GaveUpShare records how long it took until nothing acted for the extensions of a share any more.
func (c *Cache) GaveUpShare(ctx context.Context, duration time.Duration) {
	c.observe(ctx, moveDuration, duration, givenUp)
}

// HandlerPanicked counts a panic of one of the host operator's functions.
func (c *Cache) HandlerPanicked() { c.count(handlerPanics) }

// Snapshot has the values of the gauges of one cache.
type Snapshot struct {
	Connections map[Connection]int // nil if the cache has informers only
	Degraded    map[string]int     // by reason
	Watches     int
	Informers   map[string]int // by state
	Objects     int
	Caches      int            // that connections use; each once, however many share it
	CacheUsers  int            // connections that use a cache
	Permissions map[string]int // on record, by result; nil if none is kept
	Divided     *Division      // nil unless replicas share the extensions
	Extensions  []Extension    // empty unless series per extension are enabled
}

// Connection is a phase and a reason.
type Connection struct{ Phase, Reason string }

// Extension has the values of one extension's gauges.
type Extension struct {
	Namespace, Name string
	Connected       bool
	LastSuccess     time.Time
}

// collector computes the gauges at each collection.
type collector struct {
	mu       sync.Mutex
	next     int
	exported map[int]exported // guarded by mu

	announced map[string]int        // how often, by name; guarded by mu
	fleets    map[int]exportedFleet // guarded by mu
}

// exported is a cache of some name, which other caches may share.
type exported struct {
	name     string
	snapshot func() Snapshot
}

var all = &collector{exported: map[int]exported{}, announced: map[string]int{}}

// counting lists the families that count events.
var counting = []interface {
	prometheus.Collector
	DeletePartialMatch(labels prometheus.Labels) int
}{connects, connectDuration, rotations, probes, probeDuration, poolWait, tokenRequests, fenced, liveGets, moves,
	moveDuration, handlerPanics}

// everything lists all registered collectors.
func everything() (collectors []prometheus.Collector) {
	for _, family := range counting {
		collectors = append(collectors, family)
	}
	return append(collectors, all)
}

func init() { metrics.Registry.MustRegister(everything()...) }

func (c *collector) add(name string, snapshot func() Snapshot) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	id := c.next
	c.exported[id] = exported{name, snapshot}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.exported, id)
		for _, other := range c.exported {
			if other.name == name {
				return
			}
		}
		for _, family := range counting {
			family.DeletePartialMatch(prometheus.Labels{"cache": name})
		}
	}
}

func (c *collector) announce(name string) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.announced[name]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.announced[name]--; c.announced[name] == 0 {
			delete(c.announced, name)
		}
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range slices.Concat([]*prometheus.Desc{leading, connections, degraded, watches, informers, objects,
		caches, cacheUsers, permissions, owned, ownedBySlice, extensionConnected, extensionSuccess}, fleetGauges) {
		ch <- desc
	}
}

// Collect implements prometheus.Collector. Collect holds no lock while it calls the snapshots.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.collectFleets(ch)
	c.mu.Lock()
	caches := slices.Collect(maps.Values(c.exported))
	announced := slices.Collect(maps.Keys(c.announced))
	c.mu.Unlock()
	byName := map[string]*Snapshot{}
	for _, cache := range caches {
		if byName[cache.name] == nil {
			byName[cache.name] = &Snapshot{Informers: map[string]int{}}
		}
		byName[cache.name].add(cache.snapshot())
	}
	for name, sum := range byName {
		sum.collect(name, ch)
	}
	for _, name := range announced {
		leads := 0.0
		if sum := byName[name]; sum != nil && sum.Connections != nil {
			leads = 1
		}
		ch <- prometheus.MustNewConstMetric(leading, prometheus.GaugeValue, leads, name)
	}
}

// add adds the values of another cache of the same name.
func (s *Snapshot) add(other Snapshot) {
	if s.Connections == nil && other.Connections != nil {
		s.Connections = map[Connection]int{}
	}
	for connection, n := range other.Connections {
		s.Connections[connection] += n
	}
	if s.Degraded == nil && other.Degraded != nil {
		s.Degraded = map[string]int{}
	}
	for reason, n := range other.Degraded {
		s.Degraded[reason] += n
	}
	for state, n := range other.Informers {
		s.Informers[state] += n
	}
	s.Watches += other.Watches
	s.Objects += other.Objects
	s.Caches += other.Caches
	s.CacheUsers += other.CacheUsers
	if s.Permissions == nil && other.Permissions != nil {
		s.Permissions = map[string]int{}
	}
	for result, n := range other.Permissions {
		s.Permissions[result] += n
	}
	if other.Divided != nil {
		if s.Divided == nil {
			s.Divided = &Division{}
		}
		s.Divided.add(other.Divided)
	}
	s.Extensions = append(s.Extensions, other.Extensions...)
}

// collect sends the gauges of the caches of a name.
func (s *Snapshot) collect(name string, ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, append([]string{name}, labels...)...)
	}
	for state, n := range s.Informers {
		gauge(informers, float64(n), state)
	}
	gauge(objects, float64(s.Objects))
	if s.Connections == nil {
		return
	}
	for connection, n := range s.Connections {
		gauge(connections, float64(n), connection.Phase, connection.Reason)
	}
	for reason, n := range s.Degraded {
		gauge(degraded, float64(n), reason)
	}
	gauge(watches, float64(s.Watches))
	gauge(caches, float64(s.Caches))
	gauge(cacheUsers, float64(s.CacheUsers))
	for result, n := range s.Permissions {
		gauge(permissions, float64(n), result)
	}
	if s.Divided != nil {
		s.Divided.collect(gauge)
	}
	seen := map[[2]string]bool{} // caches of one name may know extensions of one name; Prometheus accepts a series once
	for _, e := range s.Extensions {
		if seen[[2]string{e.Namespace, e.Name}] {
			continue
		}
		seen[[2]string{e.Namespace, e.Name}] = true
		connected, success := 0.0, 0.0
		if e.Connected {
			connected = 1
		}
		if !e.LastSuccess.IsZero() {
			success = float64(e.LastSuccess.UnixNano()) / 1e9
		}
		gauge(extensionConnected, connected, e.Namespace, e.Name)
		gauge(extensionSuccess, success, e.Namespace, e.Name)
	}
}
