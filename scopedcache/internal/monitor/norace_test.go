//go:build !race

package monitor

// exploreDepth is no bound: the exploration goes on until there is no new state.
const exploreDepth = 1000
