package lifecycle

import (
	"strings"
	"testing"

	"github.com/latchkey-dev/latchkey/internal/statediagram"
)

//go:generate go test -run TestDiagram -update .

// diagramDepth is how many steps it takes until every way from one phase to another was found.
const diagramDepth = 9

// TestDiagram fails if the state diagram in docs/architecture.md is not what the machine does.
func TestDiagram(t *testing.T) {
	diagram := statediagram.Diagram{}
	phaseOf := func(w *world) string {
		if w.removed {
			return "[*]"
		}
		return string(phases[w.phase])
	}
	seen, front := map[world]bool{start: true}, []world{start}
	for range diagramDepth {
		var next []world
		for i := range front {
			for n := range inputs {
				in := &inputs[n]
				if in.possible != nil && !in.possible(&front[i]) {
					continue
				}
				after, _ := front[i].step(in)
				diagram.Add(phaseOf(&front[i]), phaseOf(&after), strings.ReplaceAll(in.name, ",", ""))
				if !seen[after] {
					seen[after] = true
					next = append(next, after)
				}
			}
		}
		front = next
	}
	if err := statediagram.Put("../../../docs/architecture.md", "lifecycle", diagram.Mermaid(string(phases[0])),
		*update); err != nil {
		t.Error(err)
	}
}
