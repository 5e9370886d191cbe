package lifecycle

import (
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// ticks is a time relative to now, in small integers.
type ticks int8

const (
	unset   ticks = 100
	horizon ticks = -4 // earlier times make no difference
)

const tick = time.Second

var (
	epoch0    = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	errServer = errors.New("the server failed")

	exploreConfig = &Config{
		Probe: connstate.ProbeOptions{
			Interval:         2 * tick,
			IdentityInterval: 4 * tick,
			Timeout:          3 * tick,
			FailureThreshold: 2,
			ThrottleTimeout:  3 * tick,
		},
		Backoff:     wait.Backoff{Duration: tick, Factor: 2, Steps: 2}, // 1, 2, 4, 4, … ticks
		DenialRetry: wait.Backoff{Duration: tick, Factor: 1, Steps: 1},

		AnswerTimeout: 2 * tick,
		TaskTimeout:   3 * tick,
		Shared:        true,
	}
	ours, others = connstate.Identity{Username: "ours", UID: "1", Groups: []string{"a"}},
		connstate.Identity{Username: "others", UID: "2"}
	recreated = connstate.Identity{Username: "ours", UID: "3", Groups: []string{"a"}}
	ourGroups = connstate.Identity{Username: "ours", UID: "1", Groups: []string{"b"}}
)

// reasons are the reasons that occur in the exploration. A world holds a reason as its index.
var reasons = []connstate.Reason{"", connstate.ReasonNotStarted, connstate.ReasonUnreachable,
	connstate.ReasonUnauthorized,
	connstate.ReasonIdentityMismatch, connstate.ReasonProbeFailed, connstate.ReasonInvalidCredential,
	connstate.ReasonNotAllowed,
	connstate.ReasonTokenRequestFailed, connstate.ReasonDeleted, connstate.ReasonThrottled,
	connstate.ReasonNotOwned, connstate.ReasonNotLeading}

var phases = []connstate.Phase{connstate.PhaseDisconnected, connstate.PhaseConnecting, connstate.PhaseConnected}

// world is the state of a machine and its driver, in a canonical form: equal states are equal
// values. Times are relative to now, and IDs are replaced by the values that they identify.
type world struct {
	rotationErr, lastErr       bool
	phase, reason, announced   int8 // indexes; announced plus one, zero for nothing
	key, version, rotation     int8 // of the credential; zero for none
	rotationNext, renewed      ticks
	rotationBackoff, backoff   int8
	nextConnect, deniedUntil   ticks
	attempt                    AttemptKind8
	attemptReason, probeReason int8
	failures                   int8
	lastProbe, lastSuccess     ticks
	throttled, throttledUntil  ticks // only in the exploration of evidence
	servedSince                bool  // a request was served since the last throttled probe

	served     ticks // as observed
	verified   ticks // as observed; unset if served is as good
	targetDown bool
	wake       bool  // a Resolved is pending now
	deadline   ticks // when a Resolved becomes pending; unset for never

	leaving
}

// leaving is the end of a machine, and what the driver did for it.
type leaving struct {
	stage                                  int8
	linked                                 bool  // there is a connection although none is published
	underWay                               bool  // a request has no answer yet
	answersBy, tasksBy                     ticks // until when the driver awaits; unset for nothing
	unregistered, refuses, termEnded, left bool
}

// AttemptKind8 is an AttemptKind in a byte.
type AttemptKind8 int8

var start = world{
	reason:         1,
	renewed:        unset,
	rotationNext:   unset,
	nextConnect:    unset,
	deniedUntil:    unset,
	lastProbe:      unset,
	throttled:      unset,
	throttledUntil: unset,
	lastSuccess:    unset,
	served:         unset,
	verified:       unset,
	wake:           true,
	deadline:       unset,
	leaving:        leaving{answersBy: unset, tasksBy: unset},
}

// The IDs that a decoded machine uses.
const (
	currentID    CredentialID = 1
	rotationID   CredentialID = 2
	attemptID    AttemptID    = 3
	connectionID AttemptID    = 4
	staleID      AttemptID    = 5
	lastID                    = 9
)

func at(t ticks) time.Time {
	if t == unset {
		return time.Time{}
	}
	return epoch0.Add(time.Duration(t) * tick)
}

func ticksOf(t time.Time) ticks {
	if t.IsZero() {
		return unset
	}
	return max(ticks(t.Sub(epoch0)/tick), horizon)
}

func resolutionOf(key, version int8) Resolution {
	if key == 0 {
		return Resolution{}
	}
	return Resolution{
		Key:            string('0' + rune(key)),
		Version:        string('0' + rune(version)),
		Source:         "source",
		ServiceAccount: types.NamespacedName{Name: "sa"},
		Impersonated:   key == 2,
		Expected: connstate.Identity{
			Username: "ours",
			UID:      "1",
		},
	}
}

func backoffOf(index int8) wait.Backoff {
	b := exploreConfig.Backoff
	for range index {
		b.Step()
	}
	return b
}

func indexOfBackoff(b wait.Backoff) int8 { return int8(exploreConfig.Backoff.Steps - b.Steps) }

func indexOf[T comparable](list []T, value T) int8 {
	for i, v := range list {
		if v == value {
			return int8(i)
		}
	}
	panic(errors.Errorf("%v is unknown to the exploration", value))
}

// machine returns the machine that w represents.
func (w *world) machine() *Machine {
	m := New(exploreConfig, epoch0, 0)
	m.stage, m.generation, m.source = stage(w.stage), 1, "source"
	m.phase, m.reason = phases[w.phase], reasons[w.reason]
	if m.phase == connstate.PhaseConnected {
		m.disconnectedSince, m.usedSince = time.Time{}, epoch0.Add(-tick)
	}
	if m.phase == connstate.PhaseConnected || w.linked {
		m.connection, m.stated = connectionID, ours
	}
	if w.announced > 0 {
		m.announced = announcement{reason: reasons[w.announced-1], generation: 1}
	}
	if w.key != 0 {
		m.credential, m.target, m.resolution = currentID, TargetID(w.key), resolutionOf(w.key, w.version)
	}
	if w.rotation != 0 {
		m.rotation = &rotation{
			credential: rotationID,
			resolution: resolutionOf(w.key, w.rotation),
			next:       at(w.rotationNext),
			backoff:    backoffOf(w.rotationBackoff),
		}
	}
	if w.rotationErr {
		m.rotationErr = errServer
	}
	m.renewedAt, m.nextConnect, m.backoff = at(w.renewed), at(w.nextConnect), backoffOf(w.backoff)
	m.deniedUntil, m.denials = at(w.deniedUntil), exploreConfig.DenialRetry
	if w.attempt != 0 {
		m.attempt = attempt{
			id:          attemptID,
			kind:        AttemptKind(w.attempt),
			credential:  currentID,
			probeReason: probeReason(w.attemptReason),
		}
		if m.attempt.kind == Verify {
			m.attempt.credential = rotationID
		}
	}
	m.probeReason = probeReason(w.probeReason)
	m.health = connstate.Health{
		LastProbeTime:        at(w.lastProbe),
		LastProbeSuccessTime: at(w.lastSuccess),
		ConsecutiveFailures:  int(w.failures),
	}
	if w.lastErr {
		m.health.LastError = errServer
	}
	seen := w.observed()
	m.throttled = throttled{since: at(w.throttled), until: at(w.throttledUntil), evidence: seen.latest()}
	if w.servedSince {
		m.throttled.evidence = at(horizon - 1)
	}
	m.lastID = lastID
	m.healthSince = epoch0.Add(-tick)
	m.healthy = m.HealthChanged(epoch0, w.observed()) // so that the machine has noticed what there is
	return &m
}

// take returns w with the state of the machine.
func (w world) take(m *Machine) world {
	w.stage, w.phase, w.reason = int8(m.stage), indexOf(phases, m.phase), indexOf(reasons, m.reason)
	w.linked = m.connection != 0 && m.phase != connstate.PhaseConnected
	w.announced = 0
	if m.announced != (announcement{}) {
		w.announced = indexOf(reasons, m.announced.reason) + 1
	}
	w.key, w.version, w.rotation, w.rotationNext, w.rotationBackoff = 0, 0, 0, unset, 0
	if m.resolution.Key != "" {
		w.key, w.version = int8(m.resolution.Key[0]-'0'), int8(m.resolution.Version[0]-'0')
	}
	if m.rotation != nil {
		w.rotation = int8(m.rotation.resolution.Version[0] - '0')
		w.rotationNext, w.rotationBackoff = ticksOf(m.rotation.next), indexOfBackoff(m.rotation.backoff)
	}
	w.rotationErr = m.rotationErr != nil
	w.renewed, w.nextConnect, w.backoff = ticksOf(m.renewedAt), ticksOf(m.nextConnect), indexOfBackoff(m.backoff)
	w.deniedUntil = ticksOf(m.deniedUntil)
	w.attempt, w.attemptReason, w.probeReason = AttemptKind8(m.attempt.kind), int8(m.attempt.probeReason),
		int8(m.probeReason)
	// More failures than the threshold make no difference.
	w.failures = int8(min(m.health.ConsecutiveFailures, exploreConfig.Probe.FailureThreshold))
	w.lastProbe, w.lastSuccess, w.lastErr = ticksOf(m.health.LastProbeTime), ticksOf(m.health.LastProbeSuccessTime),
		m.health.LastError != nil
	w.throttled, w.throttledUntil = ticksOf(m.throttled.since), ticksOf(m.throttled.until)
	seen := w.observed()
	w.servedSince = !m.throttled.evidence.Equal(seen.latest())
	return w.canonical()
}

// canonical removes differences that have no effect.
func (w world) canonical() world {
	switch {
	case w.phase != 2:
		w.served, w.verified = unset, unset
	case w.verified == unset:
	case w.key == 1: // the identity's own requests prove as much
		if w.served == unset || w.served < w.verified {
			w.served = w.verified
		}
		w.verified = unset
	case w.served != unset && w.served <= w.verified:
		w.served = unset
	}
	if w.throttled == unset { // what is no later than the connection's own evidence makes no difference
		for _, t := range []*ticks{&w.served, &w.verified} {
			if *t != unset && *t <= w.lastProbe && *t <= w.lastSuccess {
				*t = unset
			}
		}
	}
	if w.renewed != unset && w.renewed <= -2 {
		w.renewed = unset
	}
	if w.nextConnect < 0 {
		w.nextConnect = 0
	}
	if w.deniedUntil < 0 {
		w.deniedUntil = 0
	}
	if w.throttledUntil < 0 {
		w.throttledUntil = 0
	}
	if w.throttled == unset {
		w.servedSince = false
	}
	if w.rotationNext < 0 {
		w.rotationNext = 0
	}
	if w.version == 2 { // versions are only compared with each other, and all inputs exist for both
		if w.version = 1; w.rotation != 0 {
			w.rotation = 3 - w.rotation
		}
	}
	if w.phase != 2 { // the health of an earlier connection is only shown
		w.failures, w.lastProbe, w.lastSuccess, w.lastErr = 0, unset, unset, false
	}
	if w.attemptReason == int8(unauthorized) { // only forAll makes a difference for the answer
		w.attemptReason = int8(byClock)
	}
	if w.stage != int8(serving) { // nothing but the end matters any more
		last := w
		w = start
		w.wake, w.leaving, w.reason, w.announced, w.attempt = false, last.leaving, last.reason, last.announced, last.attempt
		if w.key = last.key; w.key != 0 {
			w.version = 1
		}
		if last.rotation != 0 {
			w.rotation, w.rotationNext = 1, 0
		}
	}
	return w
}

// advance lets time pass.
func (w world) advance(elapsed ticks) world {
	for _, t := range []*ticks{&w.rotationNext, &w.renewed, &w.nextConnect, &w.deniedUntil, &w.lastProbe,
		&w.lastSuccess, &w.served, &w.verified, &w.throttled, &w.throttledUntil, &w.answersBy, &w.tasksBy} {
		if *t != unset {
			*t = max(*t-elapsed, horizon)
		}
	}
	if w.deadline != unset {
		if w.deadline -= elapsed; w.deadline <= 0 {
			w.deadline, w.wake = unset, true
		}
	}
	return w.canonical()
}

func (w *world) observed() Observed {
	seen := Observed{Served: at(w.served), Verified: at(w.verified)}
	if w.targetDown {
		seen.Target = connstate.Health{
			LastProbeTime:       epoch0,
			ConsecutiveFailures: exploreConfig.Probe.FailureThreshold,
			LastError:           errServer,
		}
	}
	return seen
}

// serve returns the world after the driver observed that a request was served.
func (w world) serve() world {
	w.served, w.servedSince = 0, true
	return w.canonical()
}

// verify returns the world after the driver observed that the server has stated the identity for
// another connection of the same user.
func (w world) verify() world {
	w.verified, w.servedSince = 0, true
	return w.canonical()
}

// input is something that may happen in a world.
type input struct {
	name     string
	possible func(w *world) bool // nil for always
	before   func(w world) world // what happens before the event; nil for nothing
	seen     func(*Observed)     // what the driver observes besides; nil for nothing
	event    func(w *world) Event
	change   func(w world) world // in place of an event
}

func answer(name string, verdict connstate.Verdict, identity connstate.Identity, notSent connstate.Reason) input {
	a := Answer{Verdict: verdict, Identity: identity, NotSent: notSent}
	if verdict != connstate.Valid {
		a.Err = errServer
	}
	return input{
		name: "answer " + name,
		possible: func(w *world) bool {
			return w.attempt != 0
		},
		event: func(*world) Event {
			return AttemptFinished{Attempt: attemptID, Asked: epoch0.Add(-tick), Answer: a}
		},
	}
}

// inputs is the alphabet of the exploration.
var inputs = func() (list []input) {
	for key := int8(1); key <= 2; key++ {
		for version := int8(1); version <= 2; version++ {
			list = append(list, input{
				name: "resolved",
				event: func(w *world) Event {
					r := Resolved{Generation: 1, Resolution: resolutionOf(key, version)}
					if key != w.key {
						r.Target = TargetID(key)
					}
					return r
				},
			})
		}
		list = append(list,
			input{
				name: "resolved, no target",
				possible: func(w *world) bool {
					return w.key != key
				},
				event: func(*world) Event {
					return Resolved{Generation: 1, Resolution: resolutionOf(key, 1), TargetErr: errServer}
				},
			})
	}
	resolveErr := func(reason connstate.Reason, keep bool) input {
		err := failure{error: errServer, reason: reason}
		return input{
			name: "resolve error " + string(reason),
			event: func(*world) Event {
				return Resolved{
					Generation: 1,
					Err:        err,
					Resolution: Resolution{Source: "source", ServiceAccount: types.NamespacedName{Name: "sa"}, KeepCurrent: keep},
				}
			},
		}
	}
	over := LeaseEnded{Cause: errServer}
	unnoticed := func(name string, in input) input { // the lease has ended, and its event comes later
		in.name, in.seen = name, func(seen *Observed) { seen.LeaseEnded = &over }
		return in
	}
	list = append(list,
		unnoticed("resolved after the lease", list[0]),
		unnoticed("valid after the lease", answer("", connstate.Valid, ours, "")),
		unnoticed("silence after the lease", answer("", connstate.Silent, connstate.Identity{}, "")),
		unnoticed("looked after the lease", input{event: func(*world) Event { return Looked{} }}))
	return append(list,
		resolveErr(connstate.ReasonUnreachable, false), resolveErr(connstate.ReasonInvalidCredential,
			true), resolveErr(connstate.ReasonNotAllowed, false),
		answer("valid", connstate.Valid, ours, ""), answer("other identity", connstate.Valid, others, ""),
		answer("other groups", connstate.Valid, ourGroups, ""), answer("other UID", connstate.Valid, recreated,
			""), answer("401", connstate.Unauthorized, connstate.Identity{}, ""),
		answer("403", connstate.Denied, connstate.Identity{}, ""), answer("500", connstate.Failing, connstate.Identity{},
			""),
		answer("silence", connstate.Silent, connstate.Identity{}, ""), answer("no token", connstate.Failing,
			connstate.Identity{}, connstate.ReasonTokenRequestFailed),
		input{
			name: "late answer",
			event: func(*world) Event {
				return AttemptFinished{Attempt: staleID, Asked: epoch0, Answer: Answer{Verdict: connstate.Valid, Identity: ours}}
			},
		},
		input{name: "401 to a request", event: func(*world) Event { return RequestUnauthorized{Attempt: connectionID} }},
		input{
			name: "401 to an earlier connection's request",
			event: func(*world) Event {
				return RequestUnauthorized{Attempt: staleID}
			},
		},
		input{name: "probe for all", event: func(w *world) Event { return ProbeRequested{Target: TargetID(w.key)} }},
		input{
			name: "target down",
			event: func(w *world) Event {
				return TargetDown{Target: TargetID(w.key), Err: errServer}
			},
		},
		input{name: "another target down", event: func(*world) Event { return TargetDown{Target: 9, Err: errServer} }},
		input{name: "retry soon", event: func(w *world) Event { return RetryAt{Target: TargetID(w.key), At: at(1)} }},
		input{name: "retry another target soon", event: func(*world) Event { return RetryAt{Target: 9, At: at(1)} }},
		input{name: "access changed", event: func(*world) Event { return AccessChanged{} }},
		input{name: "looked", event: func(*world) Event { return Looked{} }},
		input{name: "removed", event: func(*world) Event { return Removed{Why: Deleted} }},
		input{name: "lease ended", event: func(*world) Event { return over }},
		input{name: "given up", event: func(*world) Event { return GiveUp{Cause: errServer} }},
		input{
			name: "given up with a request under way",
			possible: func(w *world) bool {
				return w.stage == int8(serving) && w.phase > 0
			},
			before: func(w world) world { w.underWay = true; return w },
			event: func(*world) Event {
				return GiveUp{Cause: errServer}
			},
		},
		input{
			name:     "requests answered",
			possible: func(w *world) bool { return w.refuses },
			before:   func(w world) world { w.underWay = false; return w },
			event:    func(*world) Event { return RequestsAnswered{} },
		},
		input{
			name:     "no more time",
			possible: func(w *world) bool { return w.unregistered },
			event:    func(*world) Event { return NoMoreTime{} },
		},
		input{
			name:     "tasks ended",
			possible: func(w *world) bool { return w.tasksBy != unset || w.left },
			event:    func(*world) Event { return TasksEnded{Clean: true} },
		},
		input{
			name:     "tasks hang",
			possible: func(w *world) bool { return w.tasksBy != unset && w.tasksBy <= 0 },
			event:    func(*world) Event { return TasksEnded{} },
		},
		input{
			name: "a request is served",
			possible: func(w *world) bool {
				return w.phase == 2
			},
			change: func(w world) world { return w.serve() },
		},
		input{
			name: "another connection of the identity is verified",
			possible: func(w *world) bool {
				return w.phase == 2
			},
			change: func(w world) world { return w.verify() },
		},
		input{name: "the target's health changes", change: func(w world) world { w.targetDown = !w.targetDown; return w }},
		input{name: "time passes", change: func(w world) world { return w.advance(1) }},
	)
}()
