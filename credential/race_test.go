//go:build race

package credential

// raceEnabled says whether this binary has the race detector in it.
const raceEnabled = true
