//go:build race

package monitor

// exploreDepth bounds the exploration under the race detector, which makes the exploration ten
// times as slow.
const exploreDepth = 10
