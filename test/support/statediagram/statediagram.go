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

// mermaid returns the diagram in Mermaid's syntax, beginning with the state start.
func (d Diagram) mermaid(start string) string {
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

// Check compares the diagram with the one in a page, between the lines "<!-- name -->" and
// "<!-- /name -->", or writes it there if update is true. A diagram of an exploration that ended
// early must only be a part of the one in the page.
func (d Diagram) Check(page, name, start string, update, early bool) error {
	content, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+name+" -->\n", "\n<!-- /"+name+" -->"
	before, rest, found := strings.Cut(string(content), begin)
	old, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return errors.Errorf("%s has no place for the diagram %q", page, name)
	}
	diagram := d.mermaid(start)
	switch {
	case update && early:
		return errors.New("an exploration that ends early does not find all transitions: update without -short and -race")
	case update:
		return os.WriteFile(page, []byte(before+begin+diagram+end+after), 0o644)
	case early:
		drawn := transitions(old)
		for _, transition := range transitions(diagram) {
			if !slices.Contains(drawn, transition) {
				return errors.Errorf("the diagram %q of %s lacks %q: run go generate", name, page, transition)
			}
		}
	case old != diagram:
		return errors.Errorf("the diagram %q of %s is stale: run go generate", name, page)
	}
	return nil
}

// transitions returns the transitions of a diagram, each as "from --> to: event".
func transitions(mermaid string) (transitions []string) {
	for line := range strings.Lines(mermaid) {
		edge, events, _ := strings.Cut(strings.TrimSpace(line), ": ")
		for event := range strings.SplitSeq(events, ", ") {
			transitions = append(transitions, edge+": "+event)
		}
	}
	return transitions
}
