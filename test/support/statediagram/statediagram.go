package statediagram

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pkg/errors"
)

// Diagram collects which events lead from one state to another.
type Diagram map[[2]string]map[string]bool

// Add records that the event leads from one state to another. Add ignores a step that stays in its
// state.
func (d Diagram) Add(from, to, event string) {
	if from == to {
		return
	}
	edge := [2]string{from, to}
	if d[edge] == nil {
		d[edge] = map[string]bool{}
	}
	d[edge][event] = true
}

// Mermaid returns the diagram in Mermaid's syntax, beginning with the state start.
func (d Diagram) Mermaid(start string) string {
	lines := []string{"```mermaid", "stateDiagram-v2", "    [*] --> " + start}
	var edges []string
	for edge, events := range d {
		var names []string
		for event := range events {
			names = append(names, event)
		}
		slices.Sort(names)
		edges = append(edges, fmt.Sprintf("    %s --> %s: %s", edge[0], edge[1], strings.Join(names, ", ")))
	}
	slices.Sort(edges)
	return strings.Join(append(append(lines, edges...), "```"), "\n")
}

// Put writes a diagram into a page, between the lines "<!-- name -->" and "<!-- /name -->". If
// update is false and the page has another diagram, Put returns an error instead.
func Put(page, name, diagram string, update bool) error {
	content, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+name+" -->\n", "\n<!-- /"+name+" -->"
	before, rest, found := strings.Cut(string(content), begin)
	old, after, ended := strings.Cut(rest, end)
	switch {
	case !found || !ended:
		return errors.Errorf("%s has no place for the diagram %q", page, name)
	case old == diagram:
		return nil
	case !update:
		return errors.Errorf("the diagram %q of %s is stale: run go generate", name, page)
	}
	return os.WriteFile(page, []byte(before+begin+diagram+end+after), 0o644)
}
