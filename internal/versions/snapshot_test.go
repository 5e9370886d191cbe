package versions

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
)

// change is one change of an object at an API server.
type change struct {
	version int
	name    string
	deleted bool
}

// stateAt returns the version of each object after the changes up to a version.
func stateAt(history []change, version int) map[string]int {
	state := map[string]int{}
	for _, c := range history {
		switch {
		case c.version > version:
		case c.deleted:
			delete(state, c.name)
		default:
			state[c.name] = c.version
		}
	}
	return state
}

// A watch that is said to have reached a list has every object in the state of that time or later,
// and no object that was deleted before. A watch that has seen every change has reached it at once,
// whatever version it knows.
func TestReachedBy(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	reachedEarly := 0
	for round := range 20000 {
		var history []change
		last := 1 + random.IntN(12) // versions of other kinds are in between
		for version := 1; version <= last; version++ {
			name := fmt.Sprint(random.IntN(3))
			_, exists := stateAt(history, version)[name]
			if random.IntN(3) > 0 && (exists || random.IntN(2) > 0) {
				history = append(history, change{version, name, exists && random.IntN(2) > 0})
			}
		}
		listed := 1 + random.IntN(last)
		list := Snapshot{Version: strconv.Itoa(listed)}
		expected := stateAt(history, listed)
		for _, version := range expected {
			list.Add(strconv.Itoa(version))
		}
		seen := 1 + random.IntN(last)
		has := stateAt(history, seen)
		// The version of a watch is that of a change it has seen, or of a bookmark. It may be late.
		known := 1 + random.IntN(seen)
		if list.ReachedBy(strconv.Itoa(known), len(has)) {
			if known < listed {
				reachedEarly++
			}
			for name, version := range expected {
				if now, ok := has[name]; ok && now < version || !ok && !deletedAfter(history, name, listed, seen) {
					t.Fatalf("round %d: %v: of version %d, seen %d, known %d: lacks %s", round, history, listed, seen, known, name)
				}
			}
			for name, version := range has {
				if _, ok := expected[name]; !ok && version <= listed {
					t.Fatalf("round %d: %v: of version %d, seen %d, known %d: still has %s", round, history, listed, seen, known, name)
				}
			}
		}
		latest := 1
		for _, c := range history {
			if c.version <= seen {
				latest = c.version
			}
		}
		if seen >= listed && !list.ReachedBy(strconv.Itoa(latest), len(has)) {
			t.Fatalf("round %d: %v: of version %d, seen %d: it would wait for a bookmark", round, history, listed, seen)
		}
	}
	NewWithT(t).Expect(reachedEarly).To(BeNumerically(">", 100), "before the version of the list")
}

func deletedAfter(history []change, name string, after, until int) bool {
	for _, c := range history {
		if c.name == name && c.deleted && c.version > after && c.version <= until {
			return true
		}
	}
	return false
}
