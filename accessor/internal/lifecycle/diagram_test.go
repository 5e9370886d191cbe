package lifecycle

import (
	"strings"
	"testing"

	"github.com/latchkey-dev/latchkey/test/support/machinetest"
	"github.com/latchkey-dev/latchkey/test/support/statediagram"
)

//go:generate go test -run TestDiagram -update .

// diagramDepth is how many steps are needed to find every transition between phases.
const diagramDepth = 9

// TestDiagram fails if the state diagram in docs/architecture.md differs from the machine.
func TestDiagram(t *testing.T) {
	diagram := statediagram.Diagram{}
	phaseOf := func(w *world) string {
		if w.stage > int8(serving) {
			return "[*]"
		}
		return string(phases[w.phase])
	}
	seen, front := map[world]bool{start: true}, []world{start}
	for range min(diagramDepth, machinetest.Depth()) {
		var next []world
		for i := range front {
			for n := range inputs {
				choice := &inputs[n]
				if choice.seen != nil || choice.possible != nil && !choice.possible(&front[i]) {
					continue
				}
				successor, _ := front[i].step(choice)
				diagram.Add(phaseOf(&front[i]), phaseOf(&successor), strings.ReplaceAll(choice.name, ",", ""))
				if !seen[successor] {
					seen[successor] = true
					next = append(next, successor)
				}
			}
		}
		front = next
	}
	if err := diagram.Check("../../../docs/architecture.md", "lifecycle", string(phases[0]), machinetest.Updating(),
		machinetest.Quick()); err != nil {
		t.Error(err)
	}
}
