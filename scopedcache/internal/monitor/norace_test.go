//go:build !race

package monitor

// exploreDepth is effectively no bound: the exploration continues until there is no new state.
const exploreDepth = 1000
