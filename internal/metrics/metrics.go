package metrics

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// seconds are the buckets of durations: from a local round trip to Client.Timeout.
var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

var (
	// Connects counts finished connects, by result: Connected, or the reason of the failure.
	Connects = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "latchkey_connects_total", Help: "Finished connects, by result: Connected, or the reason of the failure.",
	}, []string{"result"})
	// ConnectDuration is how long connects took, without the wait for their turn in the pool.
	ConnectDuration = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "latchkey_connect_duration_seconds",
		Help:    "How long connects took from TokenRequest to SelfSubjectReview, without the wait for their turn.",
		Buckets: seconds,
	})
	// Rotations counts the checks of newer credentials of connections, by result.
	Rotations = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "latchkey_rotations_total",
		Help: "Newer credentials of connections, by the result of the check at the API server: TakenUp, or why not.",
	}, []string{"result"})
	// Probes counts finished probes, by result.
	Probes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "latchkey_probes_total",
		Help: "Finished probes, by result: Valid, Unauthorized, IdentityMismatch, Denied, Failing, Silent, or " +
			"NoCredential.",
	}, []string{"result"})
	// ProbeDuration is how long probes took, without the wait for their turn in the pool.
	ProbeDuration = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "latchkey_probe_duration_seconds", Help: "How long probes took, without the wait for their turn.",
		Buckets: seconds,
	})
	// PoolWait is how long connects and probes waited for their turn.
	PoolWait = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "latchkey_pool_wait_seconds", Help: "How long connects and probes waited for their turn in the pool.",
		Buckets: append(slices.Clone(seconds), 30, 60, 300),
	})
	// TokenRequests counts finished TokenRequests, by result.
	TokenRequests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "latchkey_token_requests_total",
		Help: "Finished TokenRequests, by result: Issued, ServiceAccountNotFound, TokenRequestFailed, or Unreachable.",
	}, []string{"result"})
	// HandlerPanics counts panics of the host operator's functions.
	HandlerPanics = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "latchkey_handler_panics_total",
		Help: "Panics of the host operator's functions: event handlers, OnError, map functions (the event is lost), " +
			"Filter, AllowIdentity, RESTConfigMappers (the extension is refused).",
	})
)

var (
	connections = prometheus.NewDesc("latchkey_connections",
		"Extensions by phase of their connection and reason for not being connected.", []string{"phase", "reason"}, nil)
	watches = prometheus.NewDesc("latchkey_watches", "Watches of other controllers, by informer that they need.",
		nil, nil)
	informers = prometheus.NewDesc("latchkey_informers",
		"Informers by state: Syncing, Synced, Forbidden, NotServed, or Failing.", []string{"state"}, nil)
	objects = prometheus.NewDesc("latchkey_objects", "Objects in the caches of all connections.", nil, nil)

	extensionConnected = prometheus.NewDesc("latchkey_extension_connected",
		"Whether the extension is connected: 1 or 0. Only with Options.Metrics.PerExtension.", []string{
			"namespace", "name",
		}, nil)
	extensionSuccess = prometheus.NewDesc("latchkey_extension_last_success_timestamp_seconds",
		"When a probe or request of the extension last succeeded, in Unix time; 0 if never. Only with "+
			"Options.Metrics.PerExtension.", []string{"namespace", "name"}, nil)
)

// Snapshot has the values of the gauges of one ClusterCache.
type Snapshot struct {
	Connections map[Connection]int
	Watches     int
	Informers   map[string]int // by state
	Objects     int
	Extensions  []Extension // empty unless series per extension are enabled
}

// Connection is a phase and a reason.
type Connection struct{ Phase, Reason string }

// Extension has the values of one extension's gauges.
type Extension struct {
	Namespace, Name string
	Connected       bool
	LastSuccess     time.Time
}

// Add makes every collection of metrics call snapshot, until remove is called. snapshot may be
// called from any goroutine.
func Add(snapshot func() Snapshot) (remove func()) {
	return all.add(snapshot)
}

// collector computes the gauges at each collection.
type collector struct {
	mu        sync.Mutex
	next      int
	snapshots map[int]func() Snapshot // guarded by mu
}

var all = &collector{snapshots: map[int]func() Snapshot{}}

// everything lists all registered collectors.
var everything = []prometheus.Collector{Connects, ConnectDuration, Rotations, Probes, ProbeDuration, PoolWait,
	TokenRequests, HandlerPanics, all}

func init() { metrics.Registry.MustRegister(everything...) }

func (c *collector) add(snapshot func() Snapshot) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	id := c.next
	c.snapshots[id] = snapshot
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.snapshots, id)
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{connections, watches, informers, objects, extensionConnected,
		extensionSuccess} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector. Collect holds no lock while it calls the snapshots.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	snapshots := slices.Collect(maps.Values(c.snapshots))
	c.mu.Unlock()
	sum := Snapshot{Connections: map[Connection]int{}, Informers: map[string]int{}}
	for _, snapshot := range snapshots {
		p := snapshot()
		for connection, n := range p.Connections {
			sum.Connections[connection] += n
		}
		for state, n := range p.Informers {
			sum.Informers[state] += n
		}
		sum.Watches += p.Watches
		sum.Objects += p.Objects
		sum.Extensions = append(sum.Extensions, p.Extensions...)
	}
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for connection, n := range sum.Connections {
		gauge(connections, float64(n), connection.Phase, connection.Reason)
	}
	for state, n := range sum.Informers {
		gauge(informers, float64(n), state)
	}
	gauge(watches, float64(sum.Watches))
	gauge(objects, float64(sum.Objects))
	seen := map[[2]string]bool{} // two ClusterCaches may know extensions of one name; Prometheus accepts a series once
	for _, e := range sum.Extensions {
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
