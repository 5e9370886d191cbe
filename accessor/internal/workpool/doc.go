// Package workpool runs what does I/O on behalf of many: bounded, fair, and counted.
//
// A [Pool] runs connects and probes, bounded in all and per target. Targets that answer go first,
// so any number of targets that hang delays no other. A [TaskGroup] counts the goroutines of
// connections, so that their owner can wait for their end.
package workpool
