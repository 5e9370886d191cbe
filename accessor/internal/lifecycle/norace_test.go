//go:build !race

package lifecycle

// exploreDepth is larger than the depth of the exploration, which ends when there is no new state.
const exploreDepth = 1000
