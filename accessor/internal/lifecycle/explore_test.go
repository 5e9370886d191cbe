package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/test/support/machinetest"
)

// invariants must hold for every step, in every state. holds reports whether the invariant holds.
var invariants = []struct {
	name  string
	holds func(t *transition) bool
}{
	{"commit effects come first, after effects in their order", func(t *transition) bool {
		return slices.IsSortedFunc(t.effects, func(a, b Effect) int { return int(a.order()) - int(b.order()) })
	}},
	{"the open credentials are the one in use and the newer one", func(t *transition) bool {
		return t.credentialsAddUp()
	}},
	{"the adopted target is that of the credential", func(t *transition) bool {
		targetID := t.previous.target
		for _, e := range t.effects {
			switch e := e.(type) {
			case AdoptTarget:
				targetID = e.Target
			case ReleaseTarget:
				if e.Target == targetID && e.Target == t.previous.target && t.current.target != t.previous.target {
					targetID = 0
				}
				if e.Target != t.previous.target {
					return false
				}
			}
		}
		return targetID == t.current.target && (t.current.target == 0) == (t.current.credential == 0)
	}},
	{"there is one attempt at most, and a cancel names that attempt", func(t *transition) bool {
		return t.attemptsAddUp()
	}},
	{"only Resolved starts attempts", func(t *transition) bool {
		_, resolved := t.event.(Resolved)
		return resolved || count[CreateAttempt](t.effects) == 0
	}},
	{"every created attempt is submitted", func(t *transition) bool {
		return count[CreateAttempt](t.effects) == count[SubmitAttempt](t.effects)
	}},
	{"a newer credential exists only while connected", func(t *transition) bool {
		return t.current.rotation == nil || t.current.phase == connstate.PhaseConnected || t.current.stage == refusing
	}},
	{"the phase is Connecting exactly while a connect is under way, or waits because it was denied",
		func(t *transition) bool {
			a := &t.current
			return a.stage == refusing ||
				(a.phase == connstate.PhaseConnecting) == (a.attempt.kind == Connect || !a.deniedUntil.IsZero())
		}},
	{"a connect that was denied waits without an attempt, and at most for Timeout after the first denial",
		func(t *transition) bool {
			finished, ok := t.event.(AttemptFinished)
			a, was := &t.current, t.previous
			if !ok || finished.Attempt != was.attempt.id || was.attempt.kind != Connect || was.stage != serving ||
				finished.Answer.Verdict != connstate.Denied {
				return was.deniedUntil.IsZero() || a.deniedUntil.IsZero() || a.deniedUntil.Equal(was.deniedUntil)
			}
			over := !was.deniedUntil.IsZero() && !epoch0.Before(was.deniedUntil)
			if over {
				return a.phase == connstate.PhaseDisconnected && a.deniedUntil.IsZero()
			}
			return a.phase == connstate.PhaseConnecting && a.attempt.id == 0 && !a.nextConnect.After(a.deniedUntil) &&
				count[Log](t.effects)+count[Record](t.effects) == 0 &&
				(was.deniedUntil.IsZero() || a.deniedUntil.Equal(was.deniedUntil))
		}},
	{"the connects after a denial, and only they, let others go first", func(t *transition) bool {
		for _, e := range t.effects {
			if create, ok := e.(CreateAttempt); ok &&
				create.Deferred != (create.Kind == Connect && !t.current.deniedUntil.IsZero()) {
				return false
			}
		}
		return true
	}},
	{"probes and verifies run only while connected, verifies only with a newer credential", func(t *transition) bool {
		kind := t.current.attempt.kind
		connected := t.current.phase == connstate.PhaseConnected || t.current.stage == refusing
		return (kind != Probe && kind != Verify || connected) && (kind != Verify || t.current.rotation != nil)
	}},
	{"there is a reason exactly while not connected", func(t *transition) bool {
		return (t.current.phase == connstate.PhaseConnected) == (t.current.reason == "")
	}},
	{"while connected there is a connection, a credential and no time of disconnect", func(t *transition) bool {
		connected := t.current.phase == connstate.PhaseConnected
		linked := t.current.connection != 0
		return (connected == linked || t.current.stage == refusing && linked) &&
			connected == t.current.disconnectedSince.IsZero() && (!connected || t.current.credential != 0)
	}},
	{"the time since when the credential is used changes with the credential", func(t *transition) bool {
		was, is := t.previous.usedSince, t.current.usedSince
		switch {
		case t.current.phase != connstate.PhaseConnected:
			return is.IsZero()
		case count[BeginConnection](t.effects)+count[UseCredential](t.effects) > 0:
			return is.Equal(epoch0)
		}
		return is.Equal(was) && !is.IsZero()
	}},
	{"the time since when the connection is healthy, or not, changes with that", func(t *transition) bool {
		if t.current.healthy == t.previous.healthy {
			return t.current.healthSince.Equal(t.previous.healthSince)
		}
		return t.current.healthSince.Equal(epoch0)
	}},
	{"each step notices whether the connection is healthy, and only a connection is", func(t *transition) bool {
		s := t.current.Snapshot(epoch0, t.seen)
		return s.Healthy == t.current.healthy && (!s.Healthy || s.Phase == connstate.PhaseConnected)
	}},
	{"connections begin and end with their publish", func(t *transition) bool { return t.connectionsAddUp() }},
	{"the last publish has the machine's phase and reason", func(t *transition) bool {
		last := Publish{Phase: t.previous.phase, Reason: t.previous.reason}
		for _, e := range t.effects {
			if p, ok := e.(Publish); ok {
				last = p
			}
		}
		return last.Phase == t.current.phase && last.Reason == t.current.reason
	}},
	{"sources are notified of every connect and disconnect, once per step", func(t *transition) bool {
		changed := (t.previous.phase == connstate.PhaseConnected) != (t.current.phase == connstate.PhaseConnected)
		n := count[Notify](t.effects)
		return n <= 1 && (!changed || n == 1)
	}},
	{"a machine that has ended holds no resources", func(t *transition) bool {
		a := t.current
		return a.stage < ending || a.credential == 0 && a.rotation == nil && a.target == 0 && a.attempt.id == 0 &&
			a.connection == 0
	}},
	{"a late answer causes a discard and no other effect", func(t *transition) bool {
		finished, ok := t.event.(AttemptFinished)
		if !ok || finished.Attempt == t.previous.attempt.id || t.previous.stage != t.current.stage {
			return true
		}
		return len(t.effects) == 1 && count[DiscardConnection](t.effects) == 1
	}},
	{"the answer of a connect begins a connection or causes a discard", func(t *transition) bool {
		if _, ok := t.event.(AttemptFinished); !ok || t.previous.attempt.kind != Connect ||
			t.previous.stage != serving {
			return true
		}
		return count[BeginConnection](t.effects)+count[DiscardConnection](t.effects) == 1
	}},
	{"an earlier deadline causes a wake", func(t *transition) bool {
		if _, resolved := t.event.(Resolved); resolved {
			return true
		}
		previous, current := t.previous.Deadline(epoch0, t.seen), t.current.Deadline(epoch0, t.seen)
		forward := !current.IsZero() && (previous.IsZero() || current.Before(previous))
		return !forward || count[Wake](t.effects) == 1
	}},
	{"a resolve, wake, attempt or deadline is always pending", func(t *transition) bool {
		w := t.world
		return w.attempt != 0 || w.wake || w.deadline != unset || w.answersBy != unset || w.tasksBy != unset || w.left
	}},
	{"only secrets of open credentials are discarded", func(t *transition) bool {
		for _, e := range t.effects {
			if d, ok := e.(DiscardSecret); ok && d.Credential != t.previous.credential {
				return false
			}
		}
		return true
	}},
	{"reports name the target that received the request", func(t *transition) bool {
		for _, e := range t.effects {
			if r, ok := e.(ReportTarget); ok && (r.Target == 0 || r.Target != t.previous.target) {
				return false
			}
		}
		return true
	}},
	{"siblings learn of each review that proves the identity, and of each that rejects it", func(t *transition) bool {
		reported := func(verified time.Time) bool {
			n := 0
			for _, e := range t.effects {
				if r, ok := e.(ReportIdentity); ok && r.Verified.Equal(verified) {
					n++
				}
			}
			return n == 1 && count[ReportIdentity](t.effects) == 1
		}
		finished, ok := t.event.(AttemptFinished)
		answer, was := finished.Answer, t.previous.attempt
		if !ok || finished.Attempt != was.id || t.previous.stage != serving || t.current.stage != serving {
			return count[ReportIdentity](t.effects) == 0
		}
		proves := answer.Verdict == connstate.Valid && answer.Identity.Same(ours)
		switch {
		case was.kind == Connect && proves, was.kind == Probe && proves && answer.Identity.SameGroups(ours):
			return reported(epoch0)
		case was.kind == Probe && (answer.Verdict == connstate.Unauthorized || answer.Verdict == connstate.Valid && !proves):
			return reported(time.Time{})
		}
		return count[ReportIdentity](t.effects) == 0
	}},
	{"no connection begins unless the server states the expected identity", func(t *transition) bool {
		finished, ok := t.event.(AttemptFinished)
		return count[BeginConnection](t.effects) == 0 ||
			ok && finished.Answer.Verdict == connstate.Valid && ours.Same(finished.Answer.Identity)
	}},
	{"a connection uses only a verified credential of the same identity", func(t *transition) bool {
		for _, e := range t.effects {
			use, ok := e.(UseCredential)
			if !ok {
				continue
			}
			finished, ok := t.event.(AttemptFinished)
			if !ok || use.Credential != t.previous.attempt.credential || finished.Answer.Verdict != connstate.Valid ||
				!finished.Answer.Identity.Same(ours) || !finished.Answer.Identity.SameGroups(ours) {
				return false
			}
		}
		return true
	}},
	{"an attempt uses its credential, a verify the newer one, and a connect has the next epoch",
		func(t *transition) bool {
			a := &t.current
			for _, e := range t.effects {
				create, ok := e.(CreateAttempt)
				if !ok {
					continue
				}
				want := a.credential
				if create.Kind == Verify {
					want = a.rotation.credential
				}
				if create.Credential != want || a.attempt.credential != want || create.Kind == Connect &&
					create.Epoch != t.previous.epoch+1 {
					return false
				}
			}
			return true
		}},
	{"secrets that are newer than the review are not discarded", func(t *transition) bool {
		for _, e := range t.effects {
			if d, ok := e.(DiscardSecret); ok && !d.Before.Equal(t.event.(AttemptFinished).Asked) {
				return false
			}
		}
		return true
	}},
	{"a 401 of the connection is remembered until a probe begins, Interval after the last one at the latest",
		func(t *transition) bool {
			a := &t.current
			e, ok := t.event.(RequestUnauthorized)
			isNew := ok && e.Attempt == t.previous.connection
			if a.phase != connstate.PhaseConnected || !isNew && t.previous.probeReason != unauthorized {
				return true
			}
			if a.probeReason == byClock {
				return count[CreateAttempt](t.effects) == 1 && a.attempt.kind == Probe
			}
			latest := a.health.LastProbeTime.Add(exploreConfig.Probe.Interval)
			return a.attempt.id != 0 || a.probeReason == forAll || !a.Deadline(epoch0, t.seen).After(later(epoch0, latest))
		}},
	{"a machine leaves the registry once, in the step in which it stops serving", func(t *transition) bool {
		stops := t.previous.stage == serving && t.current.stage != serving
		return count[Unregister](t.effects) == 0 && !stops || count[Unregister](t.effects) == 1 && stops
	}},
	{"an extension is another replica's if its machine leaves because of that", func(t *transition) bool {
		for _, e := range t.effects {
			if left, ok := e.(Unregister); ok && left.NotOwned != (t.current.reason == connstate.ReasonNotOwned) {
				return false
			}
		}
		return true
	}},
	{"a machine that does not serve starts nothing", func(t *transition) bool {
		return t.current.stage == serving || count[CreateAttempt](t.effects)+count[BeginConnection](t.effects)+
			count[UseCredential](t.effects)+count[OpenCredential](t.effects)+count[AdoptTarget](t.effects) == 0
	}},
	{"stages only go on", func(t *transition) bool { return t.current.stage >= t.previous.stage }},
	{"the term has ended exactly if the machine has, and no connection outlives it", func(t *transition) bool {
		return t.world.termEnded == (t.current.stage >= ending) && (!t.world.termEnded || t.current.connection == 0)
	}},
	{"the term ends after the connection, whose reason its requests have, or else before it", func(t *transition) bool {
		ended, refused := false, t.previous.stage == refusing
		if refused && count[EndTerm](t.effects) > 0 {
			_, first := t.effects[0].(EndTerm)
			return first
		}
		for _, e := range t.effects {
			switch e.(type) {
			case EndTerm:
				ended = true
			case EndConnection, Publish:
				if ended {
					return false
				}
			}
		}
		return true
	}},
	{"answers are awaited after requests are refused with the published reason", func(t *transition) bool {
		refused, reason := false, t.previous.reason
		for _, e := range t.effects {
			switch e := e.(type) {
			case Publish:
				if reason = e.Reason; refused {
					return false
				}
			case RefuseRequests:
				refused = true
			case AwaitAnswers:
				if !refused || reason != t.current.reason {
					return false
				}
			}
		}
		return true
	}},
	{"requests under way are cut only because there is no more time, the lease ended, or the extension is removed",
		func(t *transition) bool {
			cuts := count[EndTerm](t.effects)+count[EndConnection](t.effects) > 0 && t.input.underWay ||
				count[CancelAttempt](t.effects) > 0 && t.current.stage == refusing
			if !cuts {
				return true
			}
			switch t.event.(type) {
			case NoMoreTime, LeaseEnded, Removed:
				return true
			}
			return t.seen.LeaseEnded != nil
		}},
	{"the reason of refused requests stays", func(t *transition) bool {
		return t.previous.stage == serving || t.previous.reason == t.current.reason && t.previous.phase == t.current.phase
	}},
	{"without a lease there is no connection, and the state says so in that step", func(t *transition) bool {
		_, over := t.event.(LeaseEnded)
		over = over || t.seen.LeaseEnded != nil
		return !over || t.current.phase == connstate.PhaseDisconnected && t.current.connection == 0 &&
			t.current.stage >= ending
	}},
	{"those who wait are answered once, when nothing runs any more or its time is over", func(t *transition) bool {
		n := count[Left](t.effects)
		_, over := t.event.(TasksEnded)
		return n == 0 || n == 1 && over && !t.input.left && t.world.unregistered && t.world.termEnded && !t.world.underWay &&
			t.current.stage == gone
	}},
	{"an extension that another replica may have counts as given up, once", func(t *transition) bool {
		n := 0
		for _, e := range t.effects {
			if r, ok := e.(Record); ok && r.Counter == GivenUp {
				n++
			}
		}
		lost := t.previous.stage == serving && t.current.stage != serving && t.current.reason == connstate.ReasonNotOwned
		return lost == (n == 1) && n <= 1
	}},
	{"an end that no Reconcile caused wakes", func(t *transition) bool {
		_, removed := t.event.(Removed)
		return !t.leaves() || removed == (count[Wake](t.effects) == 0)
	}},
	{"events of another target have no effect", func(t *transition) bool {
		switch e := t.event.(type) {
		case RetryAt:
			return e.Target == t.previous.target || len(t.effects) == 0
		case TargetDown:
			return e.Target == t.previous.target || len(t.effects) == 0
		}
		return true
	}},
}

// transition is one step of the exploration.
type transition struct {
	previous     *Machine
	current      Machine
	rotation     rotation // of current, if it has one
	seen         Observed
	event        Event
	effects      []Effect
	input, world world // before the event, and after the step
}

// leaves reports whether the machine stops serving in this step.
func (t *transition) leaves() bool { return t.previous.stage == serving && t.current.stage != serving }

func count[E Effect](effects []Effect) (n int) {
	for _, e := range effects {
		if _, ok := e.(E); ok {
			n++
		}
	}
	return n
}

// credentialsAddUp reports whether the effects on credentials lead to the machine's credentials.
func (t *transition) credentialsAddUp() bool {
	var list [4]CredentialID
	open := credentialsOf(t.previous, list[:0])
	for _, e := range t.effects {
		switch e := e.(type) {
		case OpenCredential:
			if e.Credential <= lastID || slices.Contains(open, e.Credential) {
				return false
			}
			open = append(open, e.Credential)
		case CloseCredential:
			if !removeID(&open, e.Credential) {
				return false
			}
		case RetireCredential:
			if !removeID(&open, e.Credential) {
				return false
			}
		case UseCredential:
			if !slices.Contains(open, e.Credential) || e.Credential != t.current.credential {
				return false
			}
		case CreateAttempt:
			if e.Credential != t.current.credential &&
				(t.current.rotation == nil || e.Credential != t.current.rotation.credential) {
				return false
			}
		}
	}
	var wantBuffer [2]CredentialID
	want := credentialsOf(&t.current, wantBuffer[:0])
	for _, id := range want {
		if !slices.Contains(open, id) {
			return false
		}
	}
	return len(open) == len(want)
}

// removeID removes id from the open credentials, and reports whether it was among them.
func removeID(open *[]CredentialID, id CredentialID) bool {
	i := slices.Index(*open, id)
	if i < 0 {
		return false
	}
	*open = slices.Delete(*open, i, i+1)
	return true
}

func credentialsOf(m *Machine, ids []CredentialID) []CredentialID {
	if m.credential != 0 {
		ids = append(ids, m.credential)
	}
	if m.rotation != nil {
		ids = append(ids, m.rotation.credential)
	}
	return ids
}

// attemptsAddUp reports whether the effects on attempts lead to the machine's attempt.
func (t *transition) attemptsAddUp() bool {
	current := t.previous.attempt.id
	if finished, ok := t.event.(AttemptFinished); ok && finished.Attempt == current {
		current = 0
	}
	for _, e := range t.effects {
		switch e := e.(type) {
		case CancelAttempt:
			if e.Attempt != current || current == 0 {
				return false
			}
			current = 0
		case CreateAttempt:
			if current != 0 || e.Attempt <= lastID {
				return false
			}
			current = e.Attempt
		}
	}
	return current == t.current.attempt.id
}

// connectionsAddUp reports whether the effects on connections lead to the machine's connection.
func (t *transition) connectionsAddUp() bool {
	connected, published, begins := t.previous.connection != 0, t.previous.phase == connstate.PhaseConnected, int64(0)
	for _, e := range t.effects {
		switch e := e.(type) {
		case BeginConnection:
			if connected {
				return false
			}
			connected = true
			begins++
		case Publish:
			published = e.Phase == connstate.PhaseConnected
			if published && !connected || !published && e.DisconnectedSince.IsZero() {
				return false
			}
		case EndConnection:
			if !connected || published {
				return false
			}
			connected = false
		}
	}
	ended := count[EndConnection](t.effects)
	return connected == (t.current.connection != 0) && published == (t.current.phase == connstate.PhaseConnected) &&
		t.current.epoch == t.previous.epoch+begins && ended == count[PauseWatches](t.effects)
}

// step returns the next world, and a description of each invariant that does not hold.
func (w world) step(choice *input) (next world, broken []string) {
	return w.stepOf(w.machine(), choice, &transition{})
}

// stepOf is step with the machine of the world, which stays as it is: one serves for all inputs. So
// does t, which holds nothing from one step to the next.
func (w world) stepOf(decoded *Machine, choice *input, t *transition) (next world, broken []string) {
	if choice.change != nil {
		return choice.change(w), nil
	}
	if choice.before != nil {
		w = choice.before(w)
	}
	t.previous, t.current, t.seen, t.event, t.input = decoded, *decoded, w.observed(), choice.event(&w), w
	m := &t.current
	if m.rotation != nil {
		t.rotation = *m.rotation
		m.rotation = &t.rotation
	}
	if choice.seen != nil {
		choice.seen(&t.seen)
	}
	t.effects = m.Step(epoch0, t.seen, t.event)
	next = w
	_, resolved := t.event.(Resolved)
	if resolved { // a workqueue has one entry per extension
		next.wake = false
	}
	for _, e := range t.effects {
		switch e := e.(type) {
		case Wake:
			next.wake = true
		case Unregister:
			next.unregistered = true
		case RefuseRequests:
			next.refuses = true
		case AwaitAnswers:
			next.answersBy = ticksOf(e.Until)
		case EndTerm:
			next.termEnded, next.underWay, next.answersBy = true, false, unset
		case AwaitTasks:
			next.tasksBy = ticks(e.Timeout / tick)
		case Left:
			next.left, next.tasksBy = true, unset
		}
	}
	if resolved {
		if due := m.Deadline(epoch0, t.seen); !due.IsZero() && (next.deadline == unset || ticksOf(due) < next.deadline) {
			if next.deadline = ticksOf(due); next.deadline <= 0 {
				next.deadline, next.wake = unset, true
			}
		}
	}
	next = next.take(m)
	t.world = next
	for n := range invariants {
		if invariant := &invariants[n]; !invariant.holds(t) {
			broken = append(broken,
				fmt.Sprintf("%s\n  world  %+v\n  event  %s %+v\n  effects %+v\n  after  %+v", invariant.name, w, choice.name,
					t.event, t.effects, next))
		}
	}
	return next, broken
}

// connects reports whether valid answers, time and pending resolves lead to a connection.
func (w world) connects(inputsByName map[string]*input) bool {
	w.targetDown = false
	for range 40 {
		var choice *input
		switch {
		case w.phase == 2:
			return true
		case w.attempt != 0:
			choice = inputsByName["answer valid"]
		case w.wake:
			choice = inputsByName["resolved"]
		default:
			choice = inputsByName["time passes"]
		}
		w, _ = w.step(choice)
	}
	return false
}

// ends reports whether time alone leads to the end of a machine that leaves, or that is given up
// with a request under way. known has the results so far.
func (w world) ends(inputsByName map[string]*input, known map[world]bool) (ends bool) {
	if w.stage == int8(serving) {
		w, _ = w.step(inputsByName["given up"])
		w.underWay = true
	}
	if ends, ok := known[w]; ok {
		return ends
	}
	defer func(first world) { known[first] = ends }(w)
	for range 10 {
		choice := inputsByName["time passes"]
		switch {
		case w.left:
			return true
		case w.answersBy != unset && w.answersBy <= 0:
			choice = inputsByName["no more time"]
		case w.tasksBy != unset && w.tasksBy <= 0:
			choice = inputsByName["tasks hang"]
		}
		w, _ = w.step(choice)
	}
	return false
}

// TestExplore visits every state that any sequence of inputs leads to, and checks the invariants on
// each step. TestExplore proves the structure. The tables and scenarios check that each decision is
// correct.
func TestExplore(t *testing.T) {
	machinetest.Cost{CPU: 100 * time.Second, Memory: 1 << 30}.Within(t, func() { explore(t) })
}

func explore(t *testing.T) {
	seen, depth, steps := machinetest.Explore(t, start, machinetest.Depth(), func(w *world, visit func(world, []string)) {
		m, t := w.machine(), &transition{}
		for n := range inputs {
			if choice := &inputs[n]; choice.possible == nil || choice.possible(w) {
				visit(w.stepOf(m, choice, t))
			}
		}
	})
	if t.Failed() {
		return
	}
	inputsByName := map[string]*input{}
	for i := range inputs {
		if inputsByName[inputs[i].name] == nil {
			inputsByName[inputs[i].name] = &inputs[i]
		}
	}
	stuck, ending := 0, map[world]bool{}
	for w := range seen {
		switch {
		case w.stage == int8(serving) && !w.connects(inputsByName):
			if stuck++; stuck == 1 {
				t.Errorf("valid answers do not lead to a connection from %+v", w)
			}
		case !w.ends(inputsByName, ending):
			if stuck++; stuck == 1 {
				t.Errorf("time alone does not lead to the end of %+v", w)
			}
		}
	}
	t.Logf("%d states, %d steps, depth %d, %d events, %d invariants and liveness: %d stuck",
		len(seen), steps, depth, len(inputs), len(invariants), stuck)
	if depth < machinetest.Depth() && len(seen) < 10_000 {
		t.Errorf("only %d states: the exploration does not cover the machine", len(seen))
	}
	names := make([]string, len(invariants))
	for i := range invariants {
		names[i] = invariants[i].name
	}
	t.Log("invariants:\n  " + strings.Join(names, "\n  "))
}
