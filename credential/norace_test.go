//go:build !race

package credential

// raceEnabled reports whether this binary was built with the race detector.
const raceEnabled = false
