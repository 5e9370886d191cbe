// Package report compares what was measured with the goals.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
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
}

// Results has the values of each peer.
type Results map[string]stage.Values

// Print prints a line for each scenario, unit and peer, and returns what misses its goal.
func (r Results) Print(out io.Writer) (missed []string) {
	ours := r[peer.Latchkey]
	for _, scenario := range slices.Sorted(maps.Keys(ours)) {
		for _, unit := range slices.Sorted(maps.Keys(ours[scenario])) {
			for _, name := range []string{peer.ClusterAPI, peer.Plain} {
				theirs, ok := r[name][scenario][unit]
				if !ok {
					fmt.Fprintf(out, "NONE  %s %s: it cannot, or was not, measured (%s)\n", scenario, name, unit)
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
func (r Results) Write(file string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return errors.WithStack(err)
	}
	return errors.WithStack(os.WriteFile(file, append(text, '\n'), 0o600))
}
