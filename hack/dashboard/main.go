// Command dashboard prints the Grafana dashboard of deploy/observability, as JSON.
//
// # Setup
//
// "make deploy" runs it.
//
// # Usage
//
//	go run ./hack/dashboard > deploy/observability/dashboard.json
//
// # Considerations
//
// Grafana's own program for this is not a Go module that can be had everywhere. The schema of
// dashboards has been stable for years, and only few of its fields are used here.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

func main() {
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(dashboard()); err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}

// object is a JSON object.
type object = map[string]any

// panel is a chart, or a number.
type panel struct {
	kind, title, description string
	width                    int // of 24
	unit                     string
	queries                  []query
}

// query is a query for Prometheus, and how its series are named.
type query struct{ expr, legend string }

// selector restricts a query to what the variables of the dashboard select.
const selector = `job=~"$job",cache=~"$cache"`

// fleet has the panels about all extensions.
func fleet() []panel {
	rate := func(counter, label string) []query {
		return []query{{fmt.Sprintf("sum by (%s) (rate(%s{%s}[$__rate_interval]))", label, counter, selector),
			"{{" + label + "}}"}}
	}
	quantiles := func(histogram string) (queries []query) {
		for _, q := range []string{"0.5", "0.99"} {
			queries = append(queries, query{fmt.Sprintf(
				"histogram_quantile(%s, sum by (le) (rate(%s_bucket{%s}[$__rate_interval])))", q, histogram, selector), q})
		}
		return queries
	}
	sum := func(gauge, label string) []query {
		if label == "" {
			return []query{{fmt.Sprintf("sum(%s{%s})", gauge, selector), gauge[len("latchkey_"):]}}
		}
		return []query{{fmt.Sprintf("sum by (%s) (%s{%s})", label, gauge, selector), "{{" + label + "}}"}}
	}
	return []panel{
		{
			kind:    "stat",
			title:   "Connected",
			width:   4,
			queries: []query{{`sum(latchkey_connections{phase="Connected",` + selector + `}) or vector(0)`, ""}},
		},
		{
			kind:    "stat",
			title:   "Not connected",
			width:   4,
			queries: []query{{`sum(latchkey_connections{phase!="Connected",` + selector + `}) or vector(0)`, ""}},
		},
		{
			kind:        "stat",
			title:       "Replicas that lead",
			width:       4,
			description: "One. Only the leader has connections.",
			queries: []query{{
				`sum(latchkey_leading{` + selector + `})`, ""}},
		},
		{kind: "stat", title: "Informers", width: 4, queries: []query{{`sum(latchkey_informers{` + selector + `})`, ""}}},
		{kind: "stat", title: "Objects", width: 4, queries: []query{{`sum(latchkey_objects{` + selector + `})`, ""}}},
		{
			kind:    "stat",
			title:   "Alerts",
			width:   4,
			queries: []query{{`count(ALERTS{alertname=~"Latchkey.*",alertstate="firing"}) or vector(0)`, ""}},
		},
		{
			kind:        "timeseries",
			title:       "Not connected, by reason",
			width:       8,
			description: "docs/operations.md says what each reason means, and what to do.",
			queries: []query{{`sum by (phase, reason) (latchkey_connections{phase!="Connected",` + selector + `})`,
				"{{phase}} {{reason}}"}},
		},
		{
			kind:        "timeseries",
			title:       "Degraded, by reason",
			width:       8,
			description: "Connected, and some of the work does not get done.",
			queries:     sum("latchkey_degraded", "reason"),
		},
		{
			kind:        "timeseries",
			title:       "Connects per second, by result",
			width:       8,
			description: "About zero. Failures are extensions that are tried again and again.",
			queries:     rate("latchkey_connects_total", "result"),
		},
		{
			kind:    "timeseries",
			title:   "Duration of connects",
			width:   8,
			unit:    "s",
			queries: quantiles("latchkey_connect_duration_seconds"),
		},
		{
			kind:    "timeseries",
			title:   "Duration of probes",
			width:   8,
			unit:    "s",
			queries: quantiles("latchkey_probe_duration_seconds"),
		},
		{
			kind:        "timeseries",
			title:       "Wait for a turn in the pool",
			width:       8,
			unit:        "s",
			description: "Seconds mean that many API servers hang, or that thousands of extensions connect at once.",
			queries:     quantiles("latchkey_pool_wait_seconds"),
		},
		{
			kind:    "timeseries",
			title:   "Probes per second, by result",
			width:   8,
			queries: rate("latchkey_probes_total", "result"),
		},
		{
			kind:        "timeseries",
			title:       "TokenRequests per second, by result",
			width:       8,
			description: "About 1.3 per ServiceAccount and hour.",
			queries:     rate("latchkey_token_requests_total", "result"),
		},
		{
			kind:    "timeseries",
			title:   "Newer credentials per second, by result",
			width:   8,
			queries: rate("latchkey_rotations_total", "result"),
		},
		{kind: "timeseries", title: "Informers, by state", width: 8, queries: sum("latchkey_informers", "state")},
		{
			kind:  "timeseries",
			title: "Objects, watches and caches",
			width: 4,
			queries: slices.Concat(sum("latchkey_objects", ""), sum("latchkey_watches", ""), sum("latchkey_caches", ""),
				sum("latchkey_cache_users", ""), sum("latchkey_permissions", "result")),
		},
		{
			kind:        "timeseries",
			title:       "Gets that went to the API server, per second",
			width:       6,
			description: "Cached Gets of identities that may get, but not list and watch. Only with LiveGet.",
			queries: []query{{`sum by (cache) (rate(latchkey_live_gets_total{` + selector + `}[$__rate_interval]))`,
				"{{cache}}"}},
		},
		{
			kind:  "timeseries",
			title: "Panics of the host operator's functions",
			width: 6,
			queries: []query{{`sum by (cache) (increase(latchkey_handler_panics_total{` + selector + `}[$__rate_interval]))`,
				"{{cache}}"}},
		},
		{
			kind:  "timeseries",
			title: "Requests refused without a lease, per second",
			width: 6,
			queries: []query{{`sum by (cache) (rate(latchkey_fenced_requests_total{` + selector + `}[$__rate_interval]))`,
				"{{cache}}"}},
		},
		{
			kind:        "timeseries",
			title:       "Extensions, by whether the replica serves them",
			width:       6,
			description: "Only if replicas share the extensions. Those without a replica count, even if others have two.",
			queries: append(sum("latchkey_ownership_extensions", "owned"), query{`sum by (cache) (max by (cache, slice) ` +
				`(sum without (owned) (latchkey_ownership_slice_extensions{` + selector + `})) - sum by (cache, slice) ` +
				`(latchkey_ownership_slice_extensions{` + selector + `,owned="true"}) > 0)`, "{{cache}}: no replica"}),
		},
		{
			kind:    "timeseries",
			title:   "Moves per second, by direction",
			width:   6,
			queries: rate("latchkey_ownership_moves_total", "direction"),
		},
		{
			kind:    "timeseries",
			title:   "Duration of moves",
			width:   6,
			unit:    "s",
			queries: quantiles("latchkey_ownership_move_duration_seconds"),
		},
		{
			kind:    "timeseries",
			title:   "Memory",
			width:   12,
			unit:    "bytes",
			queries: []query{{`process_resident_memory_bytes{job=~"$job"}`, "{{instance}}"}},
		},
		{
			kind:    "timeseries",
			title:   "CPU",
			width:   12,
			unit:    "percentunit",
			queries: []query{{`rate(process_cpu_seconds_total{job=~"$job"}[$__rate_interval])`, "{{instance}}"}},
		},
	}
}

// view has the panels about the replicas of a fleet, by the replica that serves the view of all.
func view() []panel {
	served := func(gauge string) string {
		return fmt.Sprintf(`max by (fleet) (%s{job=~"$job"} and latchkey_fleet_serving{job=~"$job"} == 1)`, gauge)
	}
	return []panel{
		{
			kind:        "timeseries",
			title:       "Extensions of all replicas, by state",
			width:       8,
			description: "What kubectl get connections shows.",
			queries: []query{{`max by (fleet, state) (latchkey_fleet_extensions{job=~"$job"} and ignoring (state) ` +
				`latchkey_fleet_serving{job=~"$job"} == 1)`, "{{fleet}} {{state}}"}},
		},
		{
			kind:        "timeseries",
			title:       "Extensions that no replica has, or that several claim",
			width:       8,
			description: "Not zero while extensions move.",
			queries: []query{
				{served("latchkey_fleet_unclaimed_extensions"), "{{fleet}}: none has"},
				{served("latchkey_fleet_contested_extensions"), "{{fleet}}: several claim"},
			},
		},
		{
			kind:        "timeseries",
			title:       "For how long, of the oldest",
			width:       8,
			unit:        "s",
			description: "A move takes seconds. From two minutes on there is an alert.",
			queries: []query{
				{served("latchkey_fleet_unclaimed_oldest_seconds"), "{{fleet}}: none has"},
				{served("latchkey_fleet_contested_oldest_seconds"), "{{fleet}}: several claim"},
			},
		},
		{
			kind:    "timeseries",
			title:   "Replicas",
			width:   12,
			queries: []query{{`max by (fleet) (latchkey_fleet_replicas{job=~"$job"})`, "{{fleet}}"}},
		},
		{
			kind:        "timeseries",
			title:       "Replicas that another one does not hear in time, and that serve",
			width:       12,
			description: "None, and one. Several that serve are a hand-over.",
			queries: []query{
				{`max by (fleet) (latchkey_fleet_silent_replicas{job=~"$job"})`, "{{fleet}}: not heard in time"},
				{`sum by (fleet) (latchkey_fleet_serving{job=~"$job"})`, "{{fleet}}: serve"},
			},
		},
	}
}

// tenant has the panels about one extension.
func tenant() []panel {
	const one = selector + `,exported_namespace=~"$namespace",name=~"$name"`
	// Prometheus renames our label namespace where it adds one of its own.
	const honored = selector + `,exported_namespace="",namespace=~"$namespace",name=~"$name"`
	both := func(metric string) string { return metric + "{" + one + "} or " + metric + "{" + honored + "}" }
	return []panel{
		{
			kind:        "state-timeline",
			title:       "Connected",
			width:       12,
			description: "Needs Options.Metrics.PerExtension, or --metrics-per-extension of latchkey manager.",
			queries:     []query{{both("latchkey_extension_connected"), "{{name}}"}},
		},
		{
			kind:    "timeseries",
			title:   "Time since the last success",
			width:   12,
			unit:    "s",
			queries: []query{{"time() - (" + both("latchkey_extension_last_success_timestamp_seconds") + ")", "{{name}}"}},
		},
	}
}

// row returns the JSON of panels below a heading, from a line of the dashboard on, and the line
// after them.
func row(title string, line int, panels []panel) (result []object, next int) {
	result = append(result, object{"type": "row", "title": title, "collapsed": false,
		"gridPos": object{"x": 0, "y": line, "w": 24, "h": 1}})
	line++
	x, height := 0, 0
	for _, p := range panels {
		if x+p.width > 24 {
			x, line = 0, line+height
		}
		height = 8
		if p.kind == "stat" {
			height = 4
		}
		result = append(result, p.object(object{"x": x, "y": line, "w": p.width, "h": height}))
		x += p.width
	}
	return result, line + height
}

var source = object{"type": "prometheus", "uid": "${datasource}"}

func (p panel) object(position object) object {
	var targets []object
	for i, q := range p.queries {
		targets = append(targets, object{"refId": string(rune('A' + i)), "expr": q.expr, "legendFormat": q.legend,
			"datasource": source})
	}
	result := object{"type": p.kind, "title": p.title, "gridPos": position, "datasource": source, "targets": targets,
		"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0}, "overrides": []object{}}}
	if p.description != "" {
		result["description"] = p.description
	}
	return result
}

func variable(name, expr string) object {
	return object{"name": name, "type": "query", "datasource": source, "multi": true, "includeAll": true,
		"allValue": ".*", "current": object{"text": "All", "value": "$__all"}, "refresh": 2, "sort": 1,
		"query": object{"query": expr, "refId": name}}
}

func dashboard() object {
	panels, line := row("Fleet", 0, fleet())
	views, line := row("View of all replicas", line, view())
	tenants, _ := row("Tenant", line, tenant())
	panels = slices.Concat(panels, views, tenants)
	for i, p := range panels {
		p["id"] = i + 1
	}
	const perExtension = "latchkey_extension_connected{" + selector + "}"
	return object{
		"uid": "latchkey", "title": "latchkey", "tags": []string{"latchkey", "kubernetes"}, "schemaVersion": 39,
		"editable": true, "graphTooltip": 1, "refresh": "30s", "time": object{"from": "now-6h", "to": "now"},
		"panels": panels,
		"templating": object{"list": []object{
			{"name": "datasource", "type": "datasource", "query": "prometheus"},
			variable("job", "label_values(latchkey_leading, job)"),
			variable("cache", `label_values(latchkey_leading{job=~"$job"}, cache)`),
			variable("namespace", "label_values("+perExtension+", exported_namespace)"),
			variable("name", "label_values("+perExtension+", name)"),
		}},
	}
}
