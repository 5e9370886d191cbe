// Package workpool runs I/O on behalf of many connections: bounded, fair, and counted.
//
// A [Pool] runs connects and probes, bounded in all and per target. Targets that answer go first,
// so targets that hang do not delay other targets. A [TaskGroup] counts the goroutines of
// connections, so that the owner can wait until they end.
package workpool
