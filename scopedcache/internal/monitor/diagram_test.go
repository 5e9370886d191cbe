package monitor

import (
	"strings"
	"testing"

	"github.com/latchkey-dev/latchkey/test/support/machinetest"
	"github.com/latchkey-dev/latchkey/test/support/statediagram"
)

//go:generate go test -run TestDiagram -update .

// diagramDepth is the number of steps after which every transition between two phases is found.
const diagramDepth = 9

// TestDiagram fails if the state diagram in docs/architecture.md is not what the machine does.
func TestDiagram(t *testing.T) {
	names := map[phase]string{
		discovering: "Discovering",
		reviewing:   "Reviewing",
		waiting:     "Waiting",
		running:     "Running",
		stopped:     "[*]",
	}
	diagram := statediagram.Diagram{}
	m := New(exploreConfig, epoch0)
	m.Start(epoch0, 0)
	start := world{}.take(&m)
	seen, front := map[world]bool{start: true}, []world{start}
	for range min(diagramDepth, machinetest.Depth()) {
		var next []world
		for i := range front {
			if front[i].phase == int8(stopped) {
				continue
			}
			for n := range inputs {
				in := &inputs[n]
				if in.possible != nil && !in.possible(&front[i]) {
					continue
				}
				after, _ := front[i].step(in)
				// skip late inputs: a step also does what is due
				if !strings.HasPrefix(in.name, "late") && !strings.HasPrefix(in.name, "stopped ") {
					diagram.Add(names[phase(front[i].phase)], names[phase(after.phase)], strings.ReplaceAll(in.name, ",", ""))
				}
				if !seen[after] {
					seen[after] = true
					next = append(next, after)
				}
			}
		}
		front = next
	}
	if err := diagram.Check("../../../docs/architecture.md", "monitor", "Discovering", machinetest.Updating(),
		machinetest.Quick()); err != nil {
		t.Error(err)
	}
}
