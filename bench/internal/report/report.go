// Package report compares what was measured with the goals.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/bench/internal/peer"
	"github.com/latchkey-dev/latchkey/bench/internal/stage"
)

// goal is what a ratio must reach. Above 1 latchkey is better.
type goal struct {
	scenario, unit, peer string
	least                float64
}

var goals = []goal{
	{"idle_heap", "bytes", peer.ClusterAPI, 22},
	{"same_objects_1000", "bytes", peer.ClusterAPI, 8},
	{"getclient", "ns", peer.ClusterAPI, 3},
	{"connect_1000", "cpu_ms", peer.ClusterAPI, 3},
	{"connect_1000", "wall_ms", peer.ClusterAPI, 1.5},
	{"first_read_100", "ms", peer.ClusterAPI, 5},
	{"empty_informer", "goroutines", peer.ClusterAPI, 2},
	{"empty_informer", "bytes", peer.ClusterAPI, 2},
	{"same_objects_1000", "bytes", peer.Plain, 0.95},
	{"first_read_100", "ms", peer.Plain, 0.95},
	{"warm_get", "ns", peer.Plain, 0.95},
	{"warm_list", "ns", peer.Plain, 0.95},
	{"event_latency", "ms", peer.Plain, 0.95},
}

// limit is what latchkey itself must not exceed.
type limit struct {
	scenario, unit string
	most           float64
}

var limits = []limit{
	{"connect_1000", "requests", 2.2}, // two, and what the manager itself asks
	{"getclient", "allocs", 0},
	{"tcp_connections", "connections", 12},
	{"tcp_connections", "peak", 64},
	{"informers_10x1000", "rss_mib", 400},
	{"informers_10x1000", "goroutines", 55_000},
	{"informers_10x1000", "recovery_s", 60},
	{"informers_10x1000", "token_requests", 0},
	{"informers_10x1000", "deleted_twice", 0},
	{"informers_5x10000", "rss_mib", 400},
	{"informers_5x10000", "goroutines", 12_000}, // 2,500 informers
	{"informers_5x10000", "sync_s", 30},
	{"informers_5x10000", "recovery_s", 60},
	{"informers_5x10000", "token_requests", 0},
	{"informers_5x10000", "deleted_twice", 0},
	{"rbac_edit", "reviews_per_s_at_rest", 20},
	{"rbac_edit", "reviews_per_edit", 16}, // five informers: soon, again, and within AccessReviewInterval
	{"shared_identity", "watches_per_kind", 50},
	{"shared_identity", "reader_goroutines", 0},
	{"shared_identity", "reader_bytes", 2048}, // of two kinds
	{"shared_identity", "writer_bytes", 2048},
	{"shared_identity", "first_read_us", 100},
	{"idle_10k", "rss_mib", 200},
	{"idle_10k", "cores", 0.1},
	{"idle_10k", "unhealthy", 0},
	{"idle_100k", "rss_mib", 1536},
	{"idle_100k", "requests_per_s", 100},
	{"idle_100k", "unhealthy", 0},
}

// Results has the values of each peer.
type Results map[string]stage.Values

// Print prints a line for each scenario, unit and peer, and returns what misses its goal.
func (r Results) Print(out io.Writer) (missed []string) {
	ours := r[peer.Latchkey]
	for _, scenario := range slices.Sorted(maps.Keys(ours)) {
		for _, name := range []string{peer.ClusterAPI, peer.Plain} {
			if r[name][scenario] == nil {
				fmt.Fprintf(out, "NONE  %s %s: it cannot do this\n", scenario, name)
			}
		}
		if r[peer.ClusterAPI][scenario] == nil && r[peer.Plain][scenario] == nil {
			for _, unit := range slices.Sorted(maps.Keys(ours[scenario])) {
				fmt.Fprintf(out, "VALUE %s %.4g %s\n", scenario, ours[scenario][unit], unit)
			}
		}
		for _, unit := range slices.Sorted(maps.Keys(ours[scenario])) {
			for _, name := range []string{peer.ClusterAPI, peer.Plain} {
				theirs, ok := r[name][scenario][unit]
				if !ok {
					continue
				}
				if theirs == 0 && ours[scenario][unit] == 0 {
					continue // no allocations
				}
				ratio := theirs / ours[scenario][unit]
				fmt.Fprintf(out, "RATIO %s %s %.4g %.4g %s %.3g\n", scenario, name, ours[scenario][unit], theirs, unit, ratio)
				for _, g := range goals {
					if g.scenario == scenario && g.unit == unit && g.peer == name && ratio < g.least {
						missed = append(missed, fmt.Sprintf("%s %s %s: ratio %.3g, want at least %g", scenario, name, unit, ratio,
							g.least))
					}
				}
			}
			for _, l := range limits {
				if value := ours[scenario][unit]; l.scenario == scenario && l.unit == unit && value > l.most {
					missed = append(missed, fmt.Sprintf("%s: %.4g %s, want at most %g", scenario, value, unit, l.most))
				}
			}
		}
	}
	return missed
}

// Write writes the results as JSON.
func (r Results) Write(folder string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return errors.WithStack(err)
	}
	return errors.WithStack(os.WriteFile(filepath.Join(folder, "results.json"), append(text, '\n'), 0o600))
}
