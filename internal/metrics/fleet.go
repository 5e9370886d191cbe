package metrics

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The gauges of a fleet have the label fleet, its name. Each replica of the fleet has them, for
// what it knows of all.
var (
	fleetServing = fleetGauge("latchkey_fleet_serving",
		"1 if this replica serves the view of all replicas, 0 if it does not.")
	fleetExtensions = fleetGauge("latchkey_fleet_extensions",
		"Extensions of all replicas by the state that the view shows.", "state")
	fleetUnclaimed    = fleetGauge("latchkey_fleet_unclaimed_extensions", "Extensions that no replica has.")
	fleetUnclaimedAge = fleetGauge("latchkey_fleet_unclaimed_oldest_seconds",
		"For how long no replica has had the extension that has been without one for longest; 0 if each has one.")
	fleetContested    = fleetGauge("latchkey_fleet_contested_extensions", "Extensions that more than one replica claims.")
	fleetContestedAge = fleetGauge("latchkey_fleet_contested_oldest_seconds",
		"For how long more than one replica has claimed the extension that has been contested for longest; 0 if none is.")
	fleetReplicas = fleetGauge("latchkey_fleet_replicas",
		"Replicas of the fleet that this one knows, and itself.")
	fleetSilent = fleetGauge("latchkey_fleet_silent_replicas",
		"Replicas of the fleet that this one knows, and does not hear, or, while it serves, has not heard out in time.")

	fleetGauges = []*prometheus.Desc{fleetServing, fleetExtensions, fleetUnclaimed, fleetUnclaimedAge, fleetContested,
		fleetContestedAge, fleetReplicas, fleetSilent}
)

func fleetGauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"fleet"}, labels...), nil)
}

// Fleet has the values of the gauges of a fleet, as one of its replicas sees it.
type Fleet struct {
	Serves               bool
	States               map[string]int // extensions by state
	Unclaimed, Contested Lasting
	Replicas, Silent     int
}

// Lasting counts extensions of which something is true that should pass soon.
type Lasting struct {
	Extensions int
	Oldest     time.Duration // for how long it has been true of one of them, at most
}

// ExportFleet makes every collection of metrics call snapshot for a fleet of that name, until end
// is called. snapshot may be called from any goroutine. Of several fleets of one name the larger
// values are reported, because Prometheus accepts a series once.
func ExportFleet(name string, snapshot func() Fleet) (end func()) {
	return all.addFleet(name, snapshot)
}

// exportedFleet is a fleet of some name.
type exportedFleet struct {
	name     string
	snapshot func() Fleet
}

func (c *collector) addFleet(name string, snapshot func() Fleet) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fleets == nil {
		c.fleets = map[int]exportedFleet{}
	}
	c.next++
	id := c.next
	c.fleets[id] = exportedFleet{name, snapshot}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.fleets, id)
	}
}

// collectFleets sends the gauges of the fleets. It holds no lock while it calls the snapshots.
func (c *collector) collectFleets(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	fleets := slices.Collect(maps.Values(c.fleets))
	c.mu.Unlock()
	byName := map[string]*Fleet{}
	for _, fleet := range fleets {
		if byName[fleet.name] == nil {
			byName[fleet.name] = &Fleet{States: map[string]int{}}
		}
		byName[fleet.name].raise(fleet.snapshot())
	}
	for name, fleet := range byName {
		fleet.collect(name, ch)
	}
}

// raise takes the values of another fleet that are larger.
func (f *Fleet) raise(other Fleet) {
	f.Serves = f.Serves || other.Serves
	for state, n := range other.States {
		f.States[state] = max(f.States[state], n)
	}
	f.Unclaimed.raise(other.Unclaimed)
	f.Contested.raise(other.Contested)
	f.Replicas, f.Silent = max(f.Replicas, other.Replicas), max(f.Silent, other.Silent)
}

func (l *Lasting) raise(other Lasting) {
	l.Extensions, l.Oldest = max(l.Extensions, other.Extensions), max(l.Oldest, other.Oldest)
}

// collect sends the gauges of the fleet of a name.
func (f *Fleet) collect(name string, ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, append([]string{name}, labels...)...)
	}
	serving := 0.0
	if f.Serves {
		serving = 1
	}
	gauge(fleetServing, serving)
	for state, n := range f.States {
		gauge(fleetExtensions, float64(n), state)
	}
	gauge(fleetUnclaimed, float64(f.Unclaimed.Extensions))
	gauge(fleetUnclaimedAge, f.Unclaimed.Oldest.Seconds())
	gauge(fleetContested, float64(f.Contested.Extensions))
	gauge(fleetContestedAge, f.Contested.Oldest.Seconds())
	gauge(fleetReplicas, float64(f.Replicas))
	gauge(fleetSilent, float64(f.Silent))
}
