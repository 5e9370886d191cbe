package monitor

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Config is what all machines of a cache have in common. It must not change.
type Config struct {
	// Interval is how long at most until access is reviewed again: 80 to 100 % of it, by jitter.
	Interval time.Duration
	// PollWithoutWatch: where the identity may list and not watch, list every Interval.
	PollWithoutWatch bool
	Timing           Timing
}

// phase is what the machine waits for.
type phase int

const (
	idle        phase = iota
	discovering       // for the kind's resource
	reviewing         // whether an informer may start
	waiting           // until it asks again
	running           // an informer runs
	stopped
)

// purpose is what a question is about.
type purpose int

const (
	startUp      purpose = iota + 1
	check                // whether the informer still has access
	aboutRefusal         // what a refusal means
)

// questionKind is what a question asks for.
type questionKind int

const (
	forMapping questionKind = iota + 1
	forReview
	forReadiness
)

// question is a question under way; zero if there is none.
type question struct {
	id      QuestionID
	kind    questionKind
	purpose purpose
	refusal refusal // that it is about
}

// Machine is the state of one scope. Make it with [New]. It is not safe for concurrent use.
type Machine struct {
	config *Config

	state       State
	stateErr    error
	since       time.Time // of state
	lastSettled State     // what readers got when that was last known

	phase    phase
	question question
	mapping  *meta.RESTMapping // of the review or life under way
	distrust bool              // the mapper may name what is not there
	lastID   uint64

	denials         int // in a row, of reviews or of the informer
	startDenials    denialCounter
	failing         wait.Backoff
	pending         wait.Backoff
	contradicted    State // what informers heard, against what reviews or discovery say; "" if they agree
	pacer           reviewPacer
	again           time.Time // when to ask once more after an event; zero for never
	accessTaken     bool      // an event was taken since the last wait, life or check began
	accessPending   bool      // another one was not
	readPending     bool      // a reader asked for what is not served
	waitUntil       time.Time
	waitBegan       time.Time
	waitExpeditable bool // a reader can shorten the wait

	life life
}

// life is one informer's life; zero while none runs.
type life struct {
	id         LifeID
	verb       string  // that checks ask for
	started    Verdict // on the question whether it may start
	quiet      bool    // it says nothing about the scope's state until it has synced
	synced     bool
	check      time.Time // when to review access
	again      time.Time // when to do so once more after an event; zero for never
	suspected  bool      // it was refused, so that a review of verb alone is not enough
	unanswered int       // reviews in a row
	denials    denialCounter
	refusals   refusalCounter

	refusedSince time.Time // of the first refusal since something was served; zero if there is none
	refusal      refusal   // that waits until the question under way is answered; zero if there is none
}

// New returns the machine of a scope about which nothing is known. Begin it with Start.
func New(config *Config, now time.Time) Machine {
	return Machine{config: config, state: Syncing, since: now, lastSettled: Syncing,
		failing: config.Timing.Failing, pending: config.Timing.Pending}
}

// Start begins with the first question.
func (m *Machine) Start(now time.Time, jitter float64) []Effect {
	s := step{Machine: m, now: now, jitter: jitter}
	s.discover()
	return s.effects
}

// Step decides what follows from an event at now, and returns what the driver is to do, in order.
// jitter in [0,1) is random.
func (m *Machine) Step(now time.Time, jitter float64, event Event) []Effect {
	s := step{Machine: m, now: now, jitter: jitter}
	if m.phase == stopped || m.phase == idle {
		return nil
	}
	switch e := event.(type) {
	case Mapped:
		s.mapped(e)
	case Reviewed:
		s.reviewed(e)
	case Readied:
		informerStep{&s}.readied(e)
	case InformerStartFailed:
		s.startFailed(e)
	case InformerSynced:
		informerStep{&s}.informerSynced(e)
	case Served:
		informerStep{&s}.served(e)
	case Failed:
		informerStep{&s}.failed(e)
	case Refused:
		informerStep{&s}.refused(e)
	case AccessMayHaveChanged:
		s.accessMayHaveChanged()
	case Read:
		m.readPending = true
	case Stopped:
		s.stop()
		return s.effects
	}
	s.proceed()
	return s.effects
}

// Deadline returns when to pass Tick; zero for never. While a question is under way, its answer
// comes first.
func (m *Machine) Deadline() time.Time {
	switch {
	case m.phase == waiting:
		if expedited := m.waitBegan.Add(m.config.Timing.ExpediteAfter); m.waitExpeditable && m.readPending &&
			expedited.Before(m.waitUntil) {
			return expedited
		}
		return m.waitUntil
	case m.phase == running && m.question.id == 0:
		return m.life.check
	default:
		return time.Time{}
	}
}

// HasRead reports whether a Read waits to be used.
func (m *Machine) HasRead() bool { return m.readPending }

// answered ends the question of that kind and ID, and returns what it was about; zero if it is not
// under way.
func (m *Machine) answered(kind questionKind, id QuestionID) question {
	if id != m.question.id || kind != m.question.kind {
		return question{}
	}
	was := m.question
	m.question = question{}
	return was
}
