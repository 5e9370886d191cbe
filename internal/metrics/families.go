package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// seconds are the buckets of durations: from a local round trip to Client.Timeout.
var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// every family has the label cache: the name of the ClusterCache or scoped cache.
var (
	connects = counters("latchkey_connects_total",
		"Finished connects, by result: Connected, or the reason of the failure.", "result")
	connectDuration = histograms("latchkey_connect_duration_seconds",
		"How long connects took from TokenRequest to SelfSubjectReview, without the wait for their turn.", seconds)
	rotations = counters("latchkey_rotations_total",
		"Newer credentials of connections, by the result of the check at the API server: TakenUp, or why not.", "result")
	probes = counters("latchkey_probes_total",
		"Finished probes, by result: Valid, Unauthorized, IdentityMismatch, Denied, Failing, Silent, or NoCredential.",
		"result")
	probeDuration = histograms("latchkey_probe_duration_seconds",
		"How long probes took, without the wait for their turn.", seconds)
	poolWait = histograms("latchkey_pool_wait_seconds",
		"How long connects and probes waited for their turn in the pool.", append(slices.Clone(seconds), 30, 60, 300))
	tokenRequests = counters("latchkey_token_requests_total",
		"Finished TokenRequests, by result: Issued, ServiceAccountNotFound, TokenRequestFailed, or Unreachable.", "result")
	fenced = counters("latchkey_fenced_requests_total",
		"Requests of connections that did not start, or were cut, because this replica did not hold the lease, or had "+
			"given up the extension.")
	liveGets = counters("latchkey_live_gets_total",
		"Cached Gets that went to the API server, because the identity may get the object, but not list and watch it. "+
			"Only with LiveGet.")
	moves = counters("latchkey_ownership_moves_total",
		"Extensions that this replica took from other replicas or from none, or gave up, by direction: Taken or GivenUp.",
		"direction")
	moveDuration = histograms("latchkey_ownership_move_duration_seconds",
		"How long it took until the extensions of a share were connected or tried once (Taken), or until nothing acted "+
			"for them any more (GivenUp).", append(slices.Clone(seconds), 30, 60), "direction")
	handlerPanics = counters("latchkey_handler_panics_total",
		"Panics of the host operator's functions: event handlers, OnError, map functions (the event is lost), "+
			"Filter, AllowIdentity, RESTConfigMappers (the extension is refused).")
)

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"cache"}, labels...))
}

func histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets},
		append([]string{"cache"}, labels...))
}

var (
	leading     = gauge("latchkey_leading", "1 if this replica has the connections of the cache, 0 if it waits to lead.")
	connections = gauge("latchkey_connections",
		"Extensions by phase of their connection and reason for not being connected.", "phase", "reason")
	degraded = gauge("latchkey_degraded",
		"Connected extensions whose work may not get done, by the worst reason that is not muted.", "reason")
	watches   = gauge("latchkey_watches", "Watches of other controllers, by informer that they need.")
	informers = gauge("latchkey_informers",
		"Informers by state: Syncing, Synced, Forbidden, NotServed, or Failing.", "state")
	objects = gauge("latchkey_objects", "Objects in the caches.")
	caches  = gauge("latchkey_caches",
		"Caches that connections use. One that extensions of one identity share counts once.")
	cacheUsers  = gauge("latchkey_cache_users", "Connections that use a cache.")
	permissions = gauge("latchkey_permissions",
		"Permissions on record by result: used, or refused in the last hour and not granted since. Only with "+
			"Options.Permissions.Record.", "result")

	extensionConnected = gauge("latchkey_extension_connected",
		"Whether the extension is connected: 1 or 0. Only with Options.Metrics.PerExtension.", "namespace", "name")
	extensionSuccess = gauge("latchkey_extension_last_success_timestamp_seconds",
		"When a probe or request of the extension last succeeded, in Unix time; 0 if never. Only with "+
			"Options.Metrics.PerExtension.", "namespace", "name")
)

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"cache"}, labels...), nil)
}
