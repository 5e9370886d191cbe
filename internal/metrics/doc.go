// Package metrics has the Prometheus metrics of latchkey, on controller-runtime's registry.
//
// # Setup
//
// Importing the package registers all metrics. Code that owns connections creates a [Cache] and
// calls its Export. Code that owns informers only calls [ExportInformers].
//
// # Usage
//
// Code calls the methods of Cache when an event happens. Gauges are computed at each scrape
// from a [Snapshot], so they are correct and leave no stale series.
//
// # Considerations
//
//   - No label holds a name that tenants choose, unless the host operator's author enables series
//     per extension. These series too are computed at each scrape, so they end with the extension.
//   - Every series has the label cache: the name of its ClusterCache or scoped cache. The series
//     end with the last cache of that name. Those about a fleet of replicas ([ExportFleet]) have the
//     label fleet instead, because a fleet is more than the caches of one process.
//   - docs/operations.md explains every metric; a test compares the lists.
package metrics
