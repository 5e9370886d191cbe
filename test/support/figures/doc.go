// Package figures has what the benchmarks of bench/ measured, as names that pages can refer to.
//
// # Setup
//
// None. bench/record.json is the record, and "make bench-peers REPORT=1" writes into it what the
// same commit has measured.
//
// # Usage
//
// A figure is named scenario.unit, such as idle_heap.bytes, and one of another peer
// idle_heap.bytes/clusterapi. Record.Text returns a figure as pages show it, and Record.Update
// writes the tables of docs/benchmarks.md. A new figure needs a line in the tables of this package.
//
// # Considerations
//
// A record holds medians, and for each where the values come from. Pages show two digits of what is
// smaller than ten, and whole numbers otherwise, because times vary by a third from run to run.
package figures
