package monitor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/latchkey-dev/latchkey/test/support/machinetest"
)

// input is an event or change that is possible in a world.
type input struct {
	name     string
	possible func(w *world) bool // nil for always
	event    Event
	change   func(w world) world // in place of an event
}

// inputs is the alphabet of the exploration.
var inputs = func() (list []input) {
	asks := func(kind int8) func(*world) bool { return func(w *world) bool { return w.asked == kind } }
	for name, verdict := range map[string]Verdict{"allowed": Allowed, "denied": Denied,
		"denied, readiness unknown": DeniedReadinessUnknown,
		"denied, not ready":         DeniedUnready, "may not be asked": Unaskable, "no answer": Unanswered} {
		e := Reviewed{Question: questionID, Verdict: verdict}
		if verdict != Allowed {
			e.Err = errForbidden
		}
		if verdict == Unanswered || verdict == Unaskable {
			e.Err = errServer
		}
		list = append(list, input{name: name, possible: asks(asksReview), event: e})
	}
	for name, e := range map[string]Mapped{"mapped": {Mapping: oneMapping}, "mapped otherwise": {Mapping: otherMapping},
		"no match": {Err: errNoMatch}, "discovery fails": {Err: errServer}} {
		e.Question = questionID
		list = append(list, input{name: name, possible: asks(asksMapping), event: e})
	}
	alive := func(w *world) bool { return w.life.alive }
	waits := func(w *world) bool { return w.life.alive && w.life.watching == unset }
	watches := func(w *world) bool { return w.life.watching != unset }
	return append(list,
		input{name: "ready", possible: asks(asksReadiness), event: Readied{Question: questionID, Ready: true}},
		input{name: "not ready", possible: asks(asksReadiness), event: Readied{Question: questionID}},
		input{name: "late answer", event: Reviewed{Question: staleQ, Verdict: Denied, Err: errForbidden}},
		input{name: "late discovery", event: Mapped{Question: staleQ, Err: errNoMatch}},
		input{
			name: "start fails",
			possible: func(w *world) bool {
				return w.life.alive && !w.life.synced
			},
			event: InformerStartFailed{Life: lifeID, Err: errServer},
		},
		input{
			name: "synced",
			possible: func(w *world) bool {
				return w.life.alive && !w.life.synced
			},
			event: InformerSynced{Life: lifeID},
		},
		input{name: "served", possible: alive, event: Served{Life: lifeID}},
		input{name: "failed", possible: alive, event: Failed{Life: lifeID, Err: errServer}},
		input{
			name:     "refused with 403",
			possible: alive,
			event:    Refused{Life: lifeID, Err: errForbidden, Sent: epoch0, At: epoch0},
		},
		input{
			name:     "refused with 404",
			possible: alive,
			event:    Refused{Life: lifeID, Err: errNotFound, Sent: epoch0, At: epoch0},
		},
		input{name: "stopped informer synced", event: InformerSynced{Life: staleL}},
		input{name: "stopped informer failed", event: Failed{Life: staleL, Err: errServer}},
		input{name: "watch begins", possible: waits, event: WatchBegan{Life: lifeID}},
		input{name: "watch begins with a list", possible: waits, event: WatchBegan{Life: lifeID, Lists: true}},
		input{
			name: "the list ends",
			possible: func(w *world) bool {
				return watches(w) && w.life.watchLists
			},
			event: WatchListed{Life: lifeID},
		},
		input{name: "watch ends at once", possible: watches, event: WatchEnded{Life: lifeID, Early: true}},
		input{
			name:     "watch ends with an error",
			possible: watches,
			event:    WatchEnded{Life: lifeID, Lasted: tick, Early: true, Err: errServer},
		},
		input{name: "watch ends early", possible: watches, event: WatchEnded{Life: lifeID, Lasted: tick, Early: true}},
		input{name: "watch ends later", possible: watches, event: WatchEnded{Life: lifeID, Lasted: tick}},
		input{name: "watch is stopped", possible: watches, event: WatchEnded{Life: lifeID, Stopped: true}},
		input{name: "stopped informer's watch ends", event: WatchEnded{Life: staleL}},
		input{name: "access may have changed", event: AccessMayHaveChanged{}},
		input{name: "events are watched", event: EventsWatched{Watched: true}},
		input{name: "events are watched, and one has just come", event: EventsWatched{Watched: true, Latest: epoch0}},
		input{name: "events are not watched", event: EventsWatched{}},
		input{name: "read", possible: func(w *world) bool { return states[w.state] == NotServed }, event: Read{}},
		input{name: "tick", event: Tick{}},
		input{name: "stopped", event: Stopped{}},
		input{name: "time passes", change: func(w world) world { return w.advance(1) }},
	)
}()

// transition is one step of the exploration.
type transition struct {
	before, after Machine
	event         Event
	effects       []Effect
}

func count[E Effect](effects []Effect) (n int) {
	for _, e := range effects {
		if _, ok := e.(E); ok {
			n++
		}
	}
	return n
}

func questions(effects []Effect) int {
	return count[AskMapping](effects) + count[AskReview](effects) + count[AskReadiness](effects)
}

// reviewDue returns when a machine with a running informer reviews its access; zero while it waits
// for an answer.
func reviewDue(m *Machine) time.Time {
	if m.question.id != 0 {
		return time.Time{}
	}
	return m.life.check
}

// invariants must hold for every step, in every state.
var invariants = []struct {
	name  string
	holds func(t *transition) bool
}{
	{"at most one question is open, and the machine knows its ID", func(t *transition) bool {
		for _, e := range t.effects {
			var id QuestionID
			switch e := e.(type) {
			case AskMapping:
				id = e.Question
			case AskReview:
				id = e.Question
			case AskReadiness:
				id = e.Question
			default:
				continue
			}
			if id <= lastID || id != t.after.question.id {
				return false
			}
		}
		return questions(t.effects) <= 1
	}},
	{"there is always an open question or a deadline", func(t *transition) bool {
		return t.after.phase == stopped || t.after.question.id != 0 || !t.after.Deadline().IsZero()
	}},
	{"no deadline but a watch's while a question of the life is open", func(t *transition) bool {
		return t.after.phase != running || t.after.question.id == 0 || t.after.Deadline().IsZero() ||
			!t.after.life.stream.began.IsZero()
	}},
	{"repeated watches that end too soon are a failure until one lasts", func(t *transition) bool {
		timing, before, after := &exploreConfig.Timing, &t.before.life, &t.after.life
		if before.id == 0 || after.id != before.id || after.quiet {
			return true
		}
		ended, isEnd := t.event.(WatchEnded)
		isEnd = isEnd && ended.Life == lifeID && !ended.Stopped
		_, synced := t.event.(InformerSynced)
		short := isEnd && (before.stream.lists || ended.Lasted < timing.AtOnce ||
			ended.Err != nil && ended.Lasted < timing.Lasts)
		_, listed := t.event.(WatchListed)
		watches := !before.stream.began.IsZero() && (listed || !before.stream.lists)
		lasted := isEnd && !short || watches && epoch0.Sub(before.stream.began) >= timing.Lasts
		if short && before.shortEnds.count >= timing.Confirmations-1 &&
			epoch0.Sub(before.shortEnds.first) >= timing.ConfirmAfter && t.after.state != Failing {
			return false
		}
		failed := false
		switch t.event.(type) {
		case Failed, Refused:
			failed = !before.shortEnds.confirmed
		}
		if before.shortEnds.count > 0 && after.shortEnds.count == 0 && !lasted && !synced && !failed {
			return false
		}
		if ended.Stopped && after.shortEnds.count > before.shortEnds.count {
			return false
		}
		return !after.shortEnds.confirmed || t.after.state == Failing
	}},
	{"a watch that is to be judged has a deadline, also while a question is open", func(t *transition) bool {
		judged, due := t.after.life.streamDue(&exploreConfig.Timing), t.after.Deadline()
		return judged.IsZero() || !due.IsZero() && !due.After(judged)
	}},
	{"after a watch that ended early, or without one, the kind is looked up, or is not trusted", func(t *transition) bool {
		before, after := &t.before.life, &t.after.life
		ended, isEnd := t.event.(WatchEnded)
		early := isEnd && ended.Life == lifeID && before.id == lifeID && !ended.Stopped &&
			ended.Early
		due := !before.follow.IsZero() || early
		switch {
		case after.id == 0 || after.id != before.id:
			return !due || t.after.distrust || t.after.phase == stopped
		case due && after.follow.IsZero():
			mapped, isMapped := t.event.(Mapped)
			return isMapped && mapped.Err == nil && t.before.question.purpose == follow && !before.endedAgain
		}
		if after.verb == "list" && after.follow.IsZero() {
			return false // no watch shows that the kind was removed
		}
		if early && after.follow.IsZero() || early && !before.follow.IsZero() && !after.endedAgain {
			return false
		}
		asked := t.before.question.id == 0 && t.after.question.purpose == follow
		if asked && (!after.check.After(epoch0) || after.refusal.err != nil) {
			return false // these come first
		}
		if !after.follow.IsZero() && after.follow.Sub(epoch0) > exploreConfig.Timing.Follow+exploreConfig.Interval {
			return false
		}
		deadline := t.after.Deadline()
		return after.follow.IsZero() || t.after.question.id != 0 || !deadline.After(after.follow)
	}},
	{"a watch that lists too long is given up, and no other", func(t *transition) bool {
		before, after := &t.before.life.stream, &t.after.life.stream
		overdue := func(w *stream) bool {
			return w.lists && !w.began.IsZero() && epoch0.Sub(w.began) >= exploreConfig.Timing.StreamedList
		}
		given := count[ListInstead](t.effects)
		return !overdue(after) && given <= 1 && (given == 0 || before.lists)
	}},
	{"after each step no action is overdue", func(t *transition) bool {
		due := t.after.Deadline()
		return due.IsZero() || due.After(epoch0)
	}},
	{"informers start only when none runs, and only the running one stops", func(t *transition) bool {
		running := t.before.life.id
		for _, e := range t.effects {
			switch e := e.(type) {
			case StartInformer:
				if running != 0 || e.Life <= lastID || e.Mapping == nil {
					return false
				}
				running = e.Life
			case StopInformer:
				if running == 0 || e.Life != running {
					return false
				}
				running = 0
			case Serve:
				if e.Life != running {
					return false
				}
			case RestartWatch:
				if e.Life != running {
					return false
				}
			case ListInstead:
				if e.Life != running {
					return false
				}
			}
		}
		return running == t.after.life.id
	}},
	{"reads are served once the informer has synced, before the state says so", func(t *transition) bool {
		_, synced := t.event.(InformerSynced)
		if count[Serve](t.effects) == 0 {
			return !synced || t.before.life.id != lifeID || t.event.(InformerSynced).Life != lifeID
		}
		first, ok := t.effects[0].(Serve)
		return synced && ok && first.Life == t.after.life.id && t.after.life.synced && t.after.state == Synced
	}},
	{"the state Synced means that reads are served", func(t *transition) bool {
		return t.after.phase == stopped || t.after.state != Synced || t.after.life.synced
	}},
	{"an informer stops before the scope is Forbidden or NotServed", func(t *transition) bool {
		stopped := t.before.life.id == 0
		for _, e := range t.effects {
			switch e := e.(type) {
			case StopInformer:
				stopped = true
			case SetState:
				if (e.State == Forbidden || e.State == NotServed) && !stopped {
					return false
				}
			}
		}
		return true
	}},
	{"while informers are contradicted, the state follows the answers to informers", func(t *transition) bool {
		a := &t.after
		return a.phase == stopped || (a.contradicted == "" || a.life.synced || a.state == a.contradicted) &&
			(!a.life.quiet || a.contradicted != "" && a.state == a.contradicted)
	}},
	{"errors come with Forbidden, NotServed and Failing only", func(t *transition) bool {
		fine := t.after.state == Syncing || t.after.state == Synced
		return fine == (t.after.stateErr == nil)
	}},
	{"a temporary error stops no informer and makes no scope Forbidden or NotServed", func(t *transition) bool {
		passes := false
		switch e := t.event.(type) {
		case Failed, AccessMayHaveChanged, EventsWatched, Read, WatchBegan, WatchListed, WatchEnded:
			passes = true
		case Reviewed:
			passes = e.Verdict == Unanswered
		case Mapped:
			passes = e.Err != nil && !meta.IsNoMatchError(e.Err)
		}
		if !passes {
			return true
		}
		for _, e := range t.effects {
			if s, ok := e.(SetState); ok && (s.State == Forbidden || s.State == NotServed) {
				return false
			}
		}
		return count[StopInformer](t.effects) == 0
	}},
	{"access that has worked is not revoked by a single denial or refusal", func(t *transition) bool {
		if !t.before.life.synced || t.after.life.id == t.before.life.id || t.after.phase == stopped {
			return true
		}
		most := t.before.config.Timing.Confirmations - 1
		switch e := t.event.(type) {
		case Reviewed:
			return t.before.life.denials.count >= most && e.Verdict.IsDenial() || t.before.life.refusals.count >= most &&
				!e.Verdict.IsDenial()
		case Mapped:
			return e.Err != nil || e.Mapping != t.before.mapping || t.before.life.refusals.count >= most
		}
		return false
	}},
	{"events and readers delay nothing", func(t *transition) bool {
		switch t.event.(type) {
		case AccessMayHaveChanged, Read, EventsWatched:
			before, after := t.before.Deadline(), t.after.Deadline()
			return before.IsZero() || !before.After(epoch0) || questions(t.effects) > 0 || !after.IsZero() &&
				!after.After(before)
		}
		return true
	}},
	{"reviews are at most Interval apart unless events are watched", func(t *transition) bool {
		due := reviewDue(&t.after)
		return t.after.phase != running || t.after.eventsWatched || due.IsZero() ||
			due.Sub(epoch0) <= exploreConfig.Interval
	}},
	{"reviews are at most Interval apart while an event settles", func(t *transition) bool {
		due := reviewDue(&t.after)
		return t.after.phase != running || due.IsZero() || !t.after.settling.After(epoch0) ||
			t.before.phase == running && t.before.question.id == 0 || due.Sub(epoch0) <= exploreConfig.Interval
	}},
	{"reviews are at most so many times Interval apart if events are watched", func(t *transition) bool {
		due := reviewDue(&t.after)
		return t.after.phase != running || due.IsZero() ||
			due.Sub(epoch0) <= time.Duration(exploreConfig.Timing.RarerWatched)*exploreConfig.Interval
	}},
	{"late answers, and reports of stopped informers, have no effect", func(t *transition) bool {
		late := false
		switch e := t.event.(type) {
		case Reviewed:
			late = e.Question == staleQ
		case Mapped:
			late = e.Question == staleQ
		case InformerSynced:
			late = e.Life == staleL
		case Failed:
			late = e.Life == staleL
		case WatchEnded:
			late = e.Life == staleL
		}
		due := t.before.Deadline()
		return !late || len(t.effects) == 0 || !due.IsZero() && !due.After(epoch0)
	}},
	{"consecutive states differ, and name the state before", func(t *transition) bool {
		state, err, settled := t.before.state, t.before.stateErr, t.before.lastSettled
		for _, e := range t.effects {
			s, ok := e.(SetState)
			if !ok {
				continue
			}
			if s.State == state && textOf(s.Err) == textOf(err) || s.Before != settled {
				return false
			}
			if state, err = s.State, s.Err; state.IsSettled() {
				settled = state
			}
		}
		return state == t.after.state
	}},
	{"a stopped machine stays stopped", func(t *transition) bool {
		return t.before.phase != stopped || len(t.effects) == 0 && t.after.phase == stopped
	}},
}

// step returns the world after an input, and the invariants that do not hold.
func (w world) step(in *input) (next world, broken []string) {
	if in.change != nil {
		return in.change(w), nil
	}
	m := w.machine()
	if w.phase == int8(stopped) {
		*m = Machine{config: exploreConfig, phase: stopped}
	}
	t := transition{before: *m, event: in.event}
	t.effects = m.Step(epoch0, 0, in.event)
	t.after = *m
	next = w.take(m)
	if t.before.phase == stopped {
		if len(t.effects) > 0 {
			broken = append(broken, "a stopped machine stays stopped")
		}
		return w, broken
	}
	for _, invariant := range invariants {
		if !invariant.holds(&t) {
			broken = append(broken,
				fmt.Sprintf("%s\n  before  %+v\n  event   %s %+v\n  effects %+v\n  after   %+v", invariant.name, w, in.name,
					in.event, t.effects, next))
		}
	}
	return next, broken
}

// goals are the states that constant answers must lead to, from every state.
var goals = []struct {
	state  State
	answer map[int8]string // by kind of question
}{
	{Synced, map[int8]string{asksMapping: "mapped", asksReview: "allowed", asksReadiness: "ready"}},
	{Forbidden, map[int8]string{asksMapping: "mapped", asksReview: "denied", asksReadiness: "ready"}},
}

// leads reports whether time and the answers of a goal lead to the goal's state.
func (w world) leads(goal int, known map[world]bool) bool {
	var path []world
	defer func() {
		for _, passed := range path {
			known[passed] = true
		}
	}()
	for range 200 {
		if known[w] || states[w.state] == goals[goal].state && !w.life.quiet {
			return true
		}
		path = append(path, w)
		name := goals[goal].answer[w.asked]
		switch {
		case name != "":
		case goal == 0 && w.life.alive && !w.life.synced:
			name = "synced"
		case goal == 0 && w.life.alive && w.life.shortEnds.confirmed && w.life.watching == unset:
			name = "watch begins"
		case goal == 0 && w.life.watchLists && w.life.shortEnds.confirmed:
			name = "the list ends"
		case goal == 0 && w.life.alive && w.life.shortEnds.confirmed:
			name = "time passes"
		case goal == 0 && w.life.alive && states[w.state] != Synced:
			name = "served"
		default:
			name = "time passes"
		}
		w, _ = w.step(byName[name])
		if name == "time passes" {
			w, _ = w.step(byName["tick"])
		}
	}
	path = nil
	return false
}

// alphabets are sets of inputs that are explored together, each until there is no new state. All
// inputs at once lead to too many states. The sets hardly depend on each other: the time before an
// informer starts, its life, and how events and readers pace questions.
var alphabets = map[string]string{
	"denials and errors": "allowed|denied|denied, readiness unknown|denied, not ready|may not be asked|no " +
		"answer|mapped|mapped otherwise|no match|discovery fails|start fails|synced|served|failed|late answer|late " +
		"discovery|stopped informer synced|stopped informer failed|read|tick|stopped|time passes",
	"refusals during its life": "allowed|denied|may not be asked|mapped|mapped otherwise|no match|ready|not ready|" +
		"synced|served|refused with 403|refused with 404|late answer|tick|stopped|time passes",
	"events and readers": "allowed|denied|denied, not ready|may not be asked|no answer|mapped|no match|" +
		"discovery fails|synced|served|failed|access may have changed|read|tick|stopped|time passes",
	"watches": "allowed|denied|no answer|mapped|synced|served|failed|watch begins|watch begins with a list|" +
		"the list ends|watch ends at once|watch ends with an error|watch ends later|watch is stopped|" +
		"stopped informer's watch ends|tick|stopped|time passes",
	"watches that end early": "allowed|denied|mapped|mapped otherwise|no match|discovery fails|synced|watch begins|" +
		"watch ends at once|watch ends early|watch ends later|late discovery|tick|stopped|time passes",
	"events that are watched": "allowed|denied|no answer|mapped|synced|access may have changed|events are watched|" +
		"events are watched, and one has just come|events are not watched|tick|stopped|time passes",
}

// TestExplore visits every state that an alphabet of inputs leads to, in every order, and checks
// the invariants on each step. TestExplore proves that no order of inputs breaks an invariant. The
// tables and scenarios prove that each decision is correct.
func TestExplore(t *testing.T) {
	machinetest.Cost{CPU: 100 * time.Second, Memory: 1 << 30}.Within(t, func() { exploreAll(t) })
}

func exploreAll(t *testing.T) {
	used := map[string]bool{}
	for name, alphabet := range alphabets {
		t.Run(name, func(t *testing.T) {
			var chosen []input
			for _, in := range inputs {
				if slices.Contains(strings.Split(alphabet, "|"), in.name) {
					chosen = append(chosen, in)
					used[in.name] = true
				}
			}
			explore(t, chosen)
		})
	}
	if len(used) != len(inputs) {
		t.Errorf("only %d of %d inputs are used", len(used), len(inputs))
	}
	names := make([]string, len(invariants))
	for i := range invariants {
		names[i] = invariants[i].name
	}
	t.Log("invariants:\n  " + strings.Join(names, "\n  "))
}

func explore(t *testing.T, inputs []input) {
	m := New(exploreConfig, epoch0)
	m.Start(epoch0, 0)
	start := world{}.take(&m)
	seen, depth, steps := machinetest.Explore(t, start, machinetest.Depth(), func(w *world, visit func(world, []string)) {
		for n := range inputs {
			if in := &inputs[n]; in.possible == nil || in.possible(w) {
				visit(w.step(in))
			}
		}
	})
	if t.Failed() {
		return
	}
	for goal := range goals {
		known := map[world]bool{}
		stuck := 0
		for w := range seen {
			if w.phase != int8(stopped) && !w.leads(goal, known) {
				if stuck++; stuck == 1 {
					t.Errorf("nothing leads to %s from %+v", goals[goal].state, w)
				}
			}
		}
	}
	t.Logf("%d states, %d steps, depth %d, %d inputs, %d invariants and liveness", len(seen), steps,
		depth, len(inputs), len(invariants))
	if depth < machinetest.Depth() && len(seen) < 1000 {
		t.Errorf("only %d states: the exploration is incomplete", len(seen))
	}
}

// byName has the inputs by name.
var byName = func() map[string]*input {
	index := map[string]*input{}
	for i := range inputs {
		index[inputs[i].name] = &inputs[i]
	}
	return index
}()
