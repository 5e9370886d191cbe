// Package machinetest has what the tests of the pure state machines share: scenario files, and the
// exploration of all states that a machine can reach.
package machinetest
