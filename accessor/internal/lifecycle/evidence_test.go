package lifecycle

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/test/support/machinetest"
)

// evidenceWorld is a world that remembers what the API server has really proved, whatever the
// driver observed. The exploration of evidence has no newer credentials and no errors of resolving.
type evidenceWorld struct {
	world
	row    int8  // failing probes in a row, with nothing served between them
	proved ticks // when something was last served, or a probe was answered
	only   ticks // since when probes are answered with nothing but "not now"; unset if the last one was not
}

// notNow are the answers of a server that refuses requests for now, with and without Retry-After,
// and of one that issues no token for now.
var notNow = func() (list []input) {
	for _, reply := range []struct {
		retryAfter time.Duration
		notSent    connstate.Reason
	}{{0, ""}, {2 * tick, ""}, {time.Hour, ""}, {tick, connstate.ReasonTokenRequestFailed}} {
		in := answer("not now", connstate.Throttled, connstate.Identity{}, reply.notSent)
		in.event = func(*world) Event {
			return AttemptFinished{
				Attempt: attemptID,
				Asked:   epoch0.Add(-tick),
				Answer: Answer{
					Verdict:    connstate.Throttled,
					Err:        errServer,
					NotSent:    reply.notSent,
					RetryAfter: reply.retryAfter,
				},
			}
		}
		list = append(list, in)
	}
	return list
}()

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
				Exchange: connstate.Exchange{
					Path:        path,
					Accept:      []string{"application/json, */*"},
					Status:      got.status,
					ContentType: got.contentType,
				},
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
		w.world = w.serve()
	}
	if x.serves {
		w.row, w.proved, w.only = 0, 0, unset
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
		for _, t := range []*ticks{&next.proved, &next.only} {
			if *t != unset {
				*t = max(*t-1, horizon)
			}
		}
	case in.name == "a request is served", in.name == "another connection of the identity is verified":
		next.row, next.proved, next.only = 0, 0, unset
	case in.event != nil && w.attempt != 0:
		finished, ok := in.event(&w.world).(AttemptFinished)
		if !ok || finished.Attempt != attemptID {
			break
		}
		next.proved = 0
		reply, only := finished.Answer, next.only
		if next.only = unset; reply.Verdict == connstate.Throttled {
			if next.only = only; only == unset {
				next.only = 0
			}
			broken = append(broken, w.throttledAnswer(&next, reply)...)
		}
		switch {
		case reply.Verdict == connstate.Valid && reply.Identity.Same(ours):
			next.row = 0
		case reply.Verdict != connstate.Denied && reply.Verdict != connstate.Throttled:
			next.row = min(next.row+1, int8(exploreConfig.Probe.FailureThreshold))
		}
	}
	if next.phase != 2 {
		next.row, next.proved, next.only = 0, unset, unset
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

// throttledAnswer checks the invariants of an answer that the server refuses requests for now.
func (w evidenceWorld) throttledAnswer(next *evidenceWorld, reply Answer) (broken []string) {
	violated := func(invariant string) {
		broken = append(broken, fmt.Sprintf("%s\n  world %+v\n  answer %+v\n  after %+v", invariant, w, reply, next))
	}
	timeout := ticks(exploreConfig.Probe.ThrottleTimeout / tick)
	m, seen := next.machine(), next.observed()
	deadline := m.Deadline(epoch0, seen)
	asked := epoch0.Add(min(reply.RetryAfter, exploreConfig.Probe.ThrottleTimeout))
	if w.stage != int8(serving) {
		return broken
	}
	if w.phase != 2 {
		if deadline.Before(asked) {
			violated("a connect does not begin before the time that the server names")
		}
		return broken
	}
	if over := next.only <= -timeout; over == (next.phase == 2) {
		violated("ThrottleTimeout of nothing but throttled probes ends the connection, and nothing less does")
	}
	if next.phase == 2 && next.failures > w.failures {
		violated("a throttled probe is no failure")
	}
	if end := at(next.only + timeout); next.phase == 2 && next.probeReason == int8(byClock) &&
		deadline.Before(earlier(asked, end)) {
		violated("a probe does not begin before the time that the server names")
	}
	return broken
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
	for i := range notNow {
		choices = append(choices, &notNow[i])
	}
	first := evidenceWorld{world: start, proved: unset, only: unset}
	seen, depth, steps := machinetest.Explore(t, first, machinetest.Depth(),
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
