// Package metrics has the Prometheus metrics of latchkey, on controller-runtime's registry.
//
// # Setup
//
// Importing the package registers all metrics. Code that owns connections registers a function with
// [Add].
//
// # Usage
//
// Code increments counters and histograms when an event happens. Gauges are computed at each scrape
// from a [Snapshot], so they are correct and leave no stale series.
//
// # Considerations
//
//   - No label holds a name that tenants choose, unless the host operator's author enables series
//     per extension. These series too are computed at each scrape, so they end with the extension.
//   - The metrics are sums over all ClusterCaches of a process.
//   - docs/operations.md explains every metric; a test compares the lists.
package metrics
