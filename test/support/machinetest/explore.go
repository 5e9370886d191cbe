package machinetest

import (
	"sync"
	"testing"

	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// Explore visits breadth first every world that start leads to, up to depth steps away, and returns
// the worlds. next calls visit for each successor of a world, with the invariants that the step
// breaks. Explore reports the first broken invariants and then stops. Two goroutines call next,
// each for other worlds.
func Explore[W comparable](t *testing.T, start W, depth int,
	next func(w *W, visit func(successor W, broken []string))) (seen map[W]struct{}, reached, steps int) {
	seen = map[W]struct{}{start: {}}
	front, violations := []W{start}, 0
	for ; len(front) > 0 && reached < depth; reached++ {
		found, broken, count := expand(front, next)
		steps += count
		for _, violation := range broken {
			if violations++; violations <= 3 {
				t.Errorf("depth %d: %s", reached, violation)
			}
		}
		if violations > 0 {
			return seen, reached, steps
		}
		front = front[:0]
		for _, w := range found {
			if _, ok := seen[w]; !ok {
				seen[w] = struct{}{}
				front = append(front, w)
			}
		}
	}
	return seen, reached, steps
}

// expand returns the worlds that follow from front, the broken invariants, and the number of steps.
func expand[W comparable](front []W, next func(*W, func(W, []string))) (found []W, broken []string, steps int) {
	const workers = 2
	var lists [workers][]W
	var failed [workers][]string
	var counts [workers]int
	var running sync.WaitGroup
	for worker := range workers {
		running.Go(func() {
			local := map[W]struct{}{}
			for i := worker; i < len(front); i += workers {
				next(&front[i], func(successor W, violations []string) {
					counts[worker]++
					failed[worker] = append(failed[worker], violations...)
					if successor != front[i] {
						local[successor] = struct{}{}
					}
				})
			}
			for w := range local {
				lists[worker] = append(lists[worker], w)
			}
		})
	}
	running.Wait()
	for worker := range workers {
		found, broken = append(found, lists[worker]...), append(broken, failed[worker]...)
		steps += counts[worker]
	}
	return found, broken, steps
}

// Quick reports whether explorations stop early: with -short, and under the race detector, which
// makes them ten times as slow. The machines are pure, so the race detector needs no more.
func Quick() bool { return testing.Short() || testutil.RaceEnabled }

// Depth returns how many steps away an exploration goes: to the end, or only a few if Quick.
func Depth() int {
	if Quick() {
		return 6
	}
	return 1000
}
