package lifecycle

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/machinetest"
)

// evidenceWorld is a world that remembers what the API server has really proved, whatever the driver
// observed. The exploration of evidence has no newer credentials and no errors of resolving.
type evidenceWorld struct {
	world
	row    int8  // failing probes in a row, with nothing served between them
	proved ticks // when something was last served, or a probe was answered
}

const (
	reviewPath = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	podsPath   = "/api/v1/pods"
)

// exchange is an answer that the driver classifies. The driver observes a success if the exchange
// serves the identity, and passes the answer of a review to the machine.
type exchange struct {
	name string
	connstate.Exchange
	serves bool // whether the answer really is a success
}

// exchanges are answers of the kinds that broken and hostile servers send.
var exchanges = func() (list []exchange) {
	for _, path := range []string{reviewPath, podsPath} {
		for _, got := range []struct {
			status      int
			contentType string
		}{
			{http.StatusSwitchingProtocols, ""}, {http.StatusOK, "text/html"}, {http.StatusCreated, "application/json"},
			{http.StatusNoContent, ""}, {http.StatusFound, "application/json"}, {http.StatusNotModified, "application/json"},
		} {
			list = append(list, exchange{
				name: fmt.Sprintf("%s answers %d %s", path, got.status, got.contentType),
				Exchange: connstate.Exchange{Path: path, Accept: []string{"application/json, */*"}, Status: got.status,
					ContentType: got.contentType},
				serves: path == podsPath && got.status == http.StatusCreated,
			})
		}
	}
	return list
}()

// answered returns the world after the exchange, as the driver feeds the machine. No review in
// exchanges states a user.
func (w evidenceWorld) answered(x *exchange) (next evidenceWorld, possible bool, broken []string) {
	review := x.Path == reviewPath
	if w.phase != 2 || review && w.attempt != AttemptKind8(Probe) {
		return w, false, nil
	}
	if x.Serves() {
		w.served = 0
	}
	if x.serves {
		w.row, w.proved = 0, 0
	}
	if !review {
		return w, true, nil
	}
	in := answer(x.name, connstate.Failing, connstate.Identity{}, "")
	next, broken = w.do(&in)
	return next, true, broken
}

// do passes an input to the machine, and checks the invariants of evidence.
func (w evidenceWorld) do(in *input) (next evidenceWorld, broken []string) {
	next = w
	next.world, broken = w.world.step(in)
	switch {
	case in.name == "time passes":
		if next.proved != unset {
			next.proved = max(next.proved-1, horizon)
		}
	case in.name == "a request is served":
		next.row, next.proved = 0, 0
	case in.event != nil && w.attempt != 0:
		finished, ok := in.event(&w.world).(AttemptFinished)
		if !ok || finished.Attempt != attemptID {
			break
		}
		next.proved = 0
		switch reply := finished.Answer; {
		case reply.Verdict == connstate.Valid && reply.Identity.Same(ours):
			next.row = 0
		case reply.Verdict != connstate.Denied:
			next.row = min(next.row+1, int8(exploreConfig.Probe.FailureThreshold))
		}
	}
	if next.phase != 2 {
		next.row, next.proved = 0, unset
		return next, broken
	}
	violated := func(invariant string) {
		broken = append(broken, fmt.Sprintf("%s\n  world %+v\n  input %s\n  after %+v", invariant, w, in.name, next))
	}
	if next.row >= int8(exploreConfig.Probe.FailureThreshold) {
		violated("FailureThreshold failing probes in a row end the connection, unless something else was served")
	}
	m, seen := next.machine(), next.observed()
	due := max(next.proved+ticks(exploreConfig.Probe.IdentityInterval/tick), 0)
	if deadline := m.Deadline(epoch0, seen); m.attempt.id == 0 && !next.targetDown && deadline.After(at(due)) {
		violated("a probe is due IdentityInterval after the last evidence at the latest")
	}
	return next, broken
}

// TestExploreEvidence explores what the driver feeds of answers: which of them count as served. The
// machine's own probe is among the answers, so what is observed is not independent of the machine.
func TestExploreEvidence(t *testing.T) {
	var choices []*input
	for i := range inputs {
		in := &inputs[i]
		switch {
		case strings.HasPrefix(in.name, "resolve error"), strings.HasPrefix(in.name, "resolved, no"):
			continue
		case in.name == "resolved":
			r := in.event(&start).(Resolved).Resolution
			if r.Key != "1" || r.Version != "1" {
				continue
			}
		}
		choices = append(choices, in)
	}
	first := evidenceWorld{world: start, proved: unset}
	seen, depth, steps := machinetest.Explore(t, first, exploreDepth,
		func(w *evidenceWorld, visit func(evidenceWorld, []string)) {
			for _, in := range choices {
				if in.possible == nil || in.possible(&w.world) {
					visit(w.do(in))
				}
			}
			for i := range exchanges {
				if next, possible, broken := w.answered(&exchanges[i]); possible {
					visit(next, broken)
				}
			}
		})
	t.Logf("%d states, %d steps, depth %d", len(seen), steps, depth)
}
