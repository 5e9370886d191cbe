package lifecycle

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// invariants are what must hold for every step, in every state. Each returns whether it holds.
var invariants = []struct {
	name  string
	holds func(t *transition) bool
}{
	{"commit effects come first, after effects in their order", func(t *transition) bool {
		return slices.IsSortedFunc(t.effects, func(a, b Effect) int { return int(a.order()) - int(b.order()) })
	}},
	{"open credentials are the one in use and the newer one", func(t *transition) bool { return t.credentialsAddUp() }},
	{"the target held is that of the credential", func(t *transition) bool {
		held := t.before.target
		for _, e := range t.effects {
			switch e := e.(type) {
			case AdoptTarget:
				held = e.Target
			case ReleaseTarget:
				if e.Target == held && e.Target == t.before.target && t.after.target != t.before.target {
					held = 0
				}
				if e.Target != t.before.target {
					return false
				}
			}
		}
		return held == t.after.target && (t.after.target == 0) == (t.after.credential == 0)
	}},
	{"there is one attempt at most, and its cancel names it", func(t *transition) bool { return t.attemptsAddUp() }},
	{"attempts begin in Resolved only", func(t *transition) bool {
		_, resolved := t.event.(Resolved)
		return resolved || count[CreateAttempt](t.effects) == 0
	}},
	{"what is created is submitted", func(t *transition) bool {
		return count[CreateAttempt](t.effects) == count[SubmitAttempt](t.effects)
	}},
	{"a newer credential exists only while connected", func(t *transition) bool {
		return t.after.rotation == nil || t.after.phase == connstate.Connected
	}},
	{"Connecting exactly while a connect is under way", func(t *transition) bool {
		return (t.after.phase == connstate.Connecting) == (t.after.attempt.kind == Connect)
	}},
	{"probes and verifies run only while connected, verifies only with a newer credential", func(t *transition) bool {
		kind := t.after.attempt.kind
		return (kind != Probe && kind != Verify || t.after.phase == connstate.Connected) &&
			(kind != Verify || t.after.rotation != nil)
	}},
	{"a reason exactly while not connected", func(t *transition) bool {
		return (t.after.phase == connstate.Connected) == (t.after.reason == "")
	}},
	{"connected means a connection, a credential and no time of disconnect", func(t *transition) bool {
		connected := t.after.phase == connstate.Connected
		return connected == (t.after.connection != 0) && connected == t.after.downSince.IsZero() &&
			(!connected || t.after.credential != 0)
	}},
	{"connections begin and end with their publish", func(t *transition) bool { return t.connectionsAddUp() }},
	{"what is published last is the machine's phase and reason", func(t *transition) bool {
		last := Publish{Phase: t.before.phase, Reason: t.before.reason}
		for _, e := range t.effects {
			if p, ok := e.(Publish); ok {
				last = p
			}
		}
		return last.Phase == t.after.phase && last.Reason == t.after.reason
	}},
	{"sources hear of every connect and disconnect, once per step", func(t *transition) bool {
		changed := (t.before.phase == connstate.Connected) != (t.after.phase == connstate.Connected)
		n := count[Notify](t.effects)
		return n <= 1 && (!changed || n == 1)
	}},
	{"what is removed holds nothing", func(t *transition) bool {
		a := t.after
		return !a.removed || a.credential == 0 && a.rotation == nil && a.target == 0 && a.attempt.id == 0 &&
			a.connection == 0
	}},
	{"a late answer is discarded and has no other effect", func(t *transition) bool {
		finished, ok := t.event.(AttemptFinished)
		if !ok || finished.Attempt == t.before.attempt.id {
			return true
		}
		return len(t.effects) == 1 && count[DiscardConnection](t.effects) == 1
	}},
	{"an answered connect begins a connection or is discarded", func(t *transition) bool {
		if _, ok := t.event.(AttemptFinished); !ok || t.before.attempt.kind != Connect || t.before.removed {
			return true
		}
		return count[BeginConnection](t.effects)+count[DiscardConnection](t.effects) == 1
	}},
	{"a deadline that comes forward wakes", func(t *transition) bool {
		if _, resolved := t.event.(Resolved); resolved {
			return true
		}
		before, after := t.before.Deadline(epoch0, t.seen), t.after.Deadline(epoch0, t.seen)
		forward := !after.IsZero() && (before.IsZero() || after.Before(before))
		return !forward || count[Wake](t.effects) == 1
	}},
	{"a resolve, wake, attempt or deadline is always owed", func(t *transition) bool {
		w := t.world
		return w.removed || w.attempt != 0 || w.wake || w.deadline != unset
	}},
	{"secrets are discarded of credentials that were open", func(t *transition) bool {
		for _, e := range t.effects {
			if d, ok := e.(DiscardSecret); ok && d.Credential != t.before.credential {
				return false
			}
		}
		return true
	}},
	{"reports name the target that was asked", func(t *transition) bool {
		for _, e := range t.effects {
			if r, ok := e.(ReportTarget); ok && (r.Target == 0 || r.Target != t.before.target) {
				return false
			}
		}
		return true
	}},
	{"no connection without the server's own word for it", func(t *transition) bool {
		finished, ok := t.event.(AttemptFinished)
		return count[BeginConnection](t.effects) == 0 ||
			ok && finished.Answer.Verdict == connstate.Valid && ours.Same(finished.Answer.Identity)
	}},
	{"a connection is given the credential that was asked about, and only the same identity's", func(t *transition) bool {
		for _, e := range t.effects {
			use, ok := e.(UseCredential)
			if !ok {
				continue
			}
			finished, ok := t.event.(AttemptFinished)
			if !ok || use.Credential != t.before.attempt.credential || finished.Answer.Verdict != connstate.Valid ||
				!finished.Answer.Identity.Same(ours) || !finished.Answer.Identity.SameGroups(ours) {
				return false
			}
		}
		return true
	}},
	{"an attempt asks with its credential: a verify with the newer one, and a connect makes the next epoch",
		func(t *transition) bool {
			a := &t.after
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
					create.Epoch != t.before.epoch+1 {
					return false
				}
			}
			return true
		}},
	{"secrets that are newer than the question are kept", func(t *transition) bool {
		for _, e := range t.effects {
			if d, ok := e.(DiscardSecret); ok && !d.Before.Equal(t.event.(AttemptFinished).Asked) {
				return false
			}
		}
		return true
	}},
	{"what another target does has no effect", func(t *transition) bool {
		switch e := t.event.(type) {
		case RetryAt:
			return e.Target == t.before.target || len(t.effects) == 0
		case TargetDown:
			return e.Target == t.before.target || len(t.effects) == 0
		}
		return true
	}},
}

// transition is one step of the exploration.
type transition struct {
	before, after Machine
	seen          Observed
	event         Event
	effects       []Effect
	world         world // after it
}

func count[E Effect](effects []Effect) (n int) {
	for _, e := range effects {
		if _, ok := e.(E); ok {
			n++
		}
	}
	return n
}

// credentialsAddUp follows credentials through the effects.
func (t *transition) credentialsAddUp() bool {
	var list [4]CredentialID
	open := credentialsOf(&t.before, list[:0])
	for _, e := range t.effects {
		switch e := e.(type) {
		case OpenCredential:
			if e.Credential <= lastID || slices.Contains(open, e.Credential) {
				return false
			}
			open = append(open, e.Credential)
		case CloseCredential:
			if !closed(&open, e.Credential) {
				return false
			}
		case RetireCredential:
			if !closed(&open, e.Credential) {
				return false
			}
		case UseCredential:
			if !slices.Contains(open, e.Credential) || e.Credential != t.after.credential {
				return false
			}
		case CreateAttempt:
			if e.Credential != t.after.credential &&
				(t.after.rotation == nil || e.Credential != t.after.rotation.credential) {
				return false
			}
		}
	}
	var wanted [2]CredentialID
	want := credentialsOf(&t.after, wanted[:0])
	for _, id := range want {
		if !slices.Contains(open, id) {
			return false
		}
	}
	return len(open) == len(want)
}

// closed takes id from the open credentials, and reports whether it was among them.
func closed(open *[]CredentialID, id CredentialID) bool {
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

// attemptsAddUp follows the attempt through the effects.
func (t *transition) attemptsAddUp() bool {
	current := t.before.attempt.id
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
	return current == t.after.attempt.id
}

// connectionsAddUp follows the connection through the effects.
func (t *transition) connectionsAddUp() bool {
	connected, published, begun := t.before.phase == connstate.Connected, t.before.phase == connstate.Connected, int64(0)
	for _, e := range t.effects {
		switch e := e.(type) {
		case BeginConnection:
			if connected {
				return false
			}
			connected = true
			begun++
		case Publish:
			published = e.Phase == connstate.Connected
			if published && !connected || !published && e.DownSince.IsZero() {
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
	return connected == published && connected == (t.after.phase == connstate.Connected) &&
		t.after.epoch == t.before.epoch+begun && ended == count[PauseWatches](t.effects)
}

// step returns what follows in a world, with the names of the invariants that do not hold.
func (w world) step(in *input) (next world, broken []string) {
	if in.change != nil {
		return in.change(w), nil
	}
	m := w.machine()
	t := transition{before: *m, seen: w.observed(), event: in.event(&w)}
	t.effects = m.Step(epoch0, t.seen, t.event)
	t.after = *m
	next = w
	_, resolved := t.event.(Resolved)
	if resolved { // a workqueue has one entry per extension
		next.wake = false
	}
	for _, e := range t.effects {
		if _, ok := e.(Wake); ok {
			next.wake = true
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
	for _, invariant := range invariants {
		if !invariant.holds(&t) {
			broken = append(broken,
				fmt.Sprintf("%s\n  world  %+v\n  event  %s %+v\n  effects %+v\n  after  %+v", invariant.name, w, in.name,
					t.event, t.effects, next))
		}
	}
	return next, broken
}

// connects reports whether good answers, time and what is owed lead to a connection.
func (w world) connects(by map[string]*input) bool {
	w.targetDown = false
	for range 40 {
		var in *input
		switch {
		case w.phase == 2:
			return true
		case w.attempt != 0:
			in = by["answer valid"]
		case w.wake:
			in = by["resolved"]
		default:
			in = by["time passes"]
		}
		w, _ = w.step(in)
	}
	return false
}

// TestExplore visits every state that the alphabet of inputs leads to, in every order, and checks
// the invariants on each step. It proves structure. That each decision is the right one is for the
// tables and scenarios to prove.
func TestExplore(t *testing.T) {
	begun := time.Now()
	seen := map[world]struct{}{start: {}}
	front, steps, broken := []world{start}, 0, 0
	depth := 0
	for ; len(front) > 0 && depth < exploreDepth; depth++ {
		found, violations := expand(front)
		steps += len(front) * len(inputs)
		for _, violation := range violations {
			if broken++; broken <= 3 {
				t.Errorf("depth %d: %s", depth, violation)
			}
		}
		if broken > 0 {
			return
		}
		front = front[:0]
		for _, w := range found {
			if _, ok := seen[w]; !ok {
				seen[w] = struct{}{}
				front = append(front, w)
			}
		}
	}
	by := map[string]*input{}
	for i := range inputs {
		if by[inputs[i].name] == nil {
			by[inputs[i].name] = &inputs[i]
		}
	}
	stuck := 0
	for w := range seen {
		if !w.removed && !w.connects(by) {
			if stuck++; stuck == 1 {
				t.Errorf("good answers do not lead to a connection from %+v", w)
			}
		}
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	t.Logf("%d states, %d steps, depth %d, %d events, %d invariants and liveness: %d broken, %d stuck; %.1f s, %d MiB",
		len(seen), steps, depth, len(inputs), len(invariants), broken, stuck, time.Since(begun).Seconds(), memory.Sys>>20)
	if depth < exploreDepth && len(seen) < 10_000 {
		t.Errorf("only %d states: the exploration does not reach what it is for", len(seen))
	}
	names := make([]string, len(invariants))
	for i := range invariants {
		names[i] = invariants[i].name
	}
	t.Log("invariants:\n  " + strings.Join(names, "\n  "))
}

// expand returns what follows from the worlds. Two goroutines share the work.
func expand(front []world) (found []world, violations []string) {
	const workers = 2
	var lists [workers][]world
	var failed [workers][]string
	var running sync.WaitGroup
	for worker := range workers {
		running.Go(func() {
			local := map[world]struct{}{}
			for i := worker; i < len(front); i += workers {
				for n := range inputs {
					in := &inputs[n]
					if in.possible != nil && !in.possible(&front[i]) {
						continue
					}
					next, broken := front[i].step(in)
					failed[worker] = append(failed[worker], broken...)
					if next != front[i] {
						local[next] = struct{}{}
					}
				}
			}
			for w := range local {
				lists[worker] = append(lists[worker], w)
			}
		})
	}
	running.Wait()
	for worker := range workers {
		found, violations = append(found, lists[worker]...), append(violations, failed[worker]...)
	}
	return found, violations
}
