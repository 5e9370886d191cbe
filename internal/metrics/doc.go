// Package metrics is what latchkey tells Prometheus, on controller-runtime's registry.
//
// # Setup
//
// There is none: importing it registers everything. Whoever has connections announces itself with
// [Add].
//
// # Usage
//
// Counters and histograms are incremented where things happen. Gauges are counted when somebody
// looks, from a [Picture] of what there is, so they are right and leave nothing behind.
//
// # Considerations
//
//   - No label holds a name that tenants choose, unless the host operator's author asks for series
//     per extension; these too are made when somebody looks, and so are gone with the extension.
//   - All ClusterCaches of a process are added up.
//   - docs/operations.md explains every metric; a test compares the lists.
package metrics
