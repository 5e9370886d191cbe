package monitor

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Config is shared by all machines of a cache. A Config must not change.
type Config struct {
	// Interval is the maximum time between two access reviews while changes of RBAC are not
	// reported. The actual time is 80 to 100 % of it, by jitter.
	Interval time.Duration
	// PollWithoutWatch makes informers list every Interval if the identity may list but not watch.
	PollWithoutWatch bool
	Timing           Timing
}

// phase is the current activity of the machine.
type phase int8

const (
	idle        phase = iota
	discovering       // waits for the kind's resource
	reviewing         // waits for the review before an informer starts
	waiting           // waits until it asks the API server again
	running           // an informer runs
	stopped
)

// purpose is the reason for a question.
type purpose int8

const (
	startUp      purpose = iota + 1
	check                // whether the identity still has access
	aboutRefusal         // whether a refusal is trusted
	follow               // whether the kind has another resource after the end of a watch
)

// questionKind is the kind of answer to a question.
type questionKind int8

const (
	forMapping questionKind = iota + 1
	forReview
	forReadiness
)

// question is a question without an answer so far; zero if there is none.
type question struct {
	id      QuestionID
	kind    questionKind
	purpose purpose
	refusal refusal // for aboutRefusal
}

// Machine is the state of one scope. Create it with [New]. A Machine is not safe for concurrent
// use.
type Machine struct {
	config *Config

	state       State
	stateErr    error
	since       time.Time // when state began
	lastSettled State     // the last state in which the result of a read was known

	phase    phase
	question question
	mapping  *meta.RESTMapping // for the current review or life
	lastID   uint64

	// Booleans are together, because there is a Machine for each informer.
	distrust        bool // the resource that is known may be wrong
	accessTaken     bool // an RBAC event was used since the last wait, life or check began
	accessPending   bool // another RBAC event is unused so far
	eventsWatched   bool // all RBAC events are reported
	readPending     bool // a reader asked for a kind that is not served
	waitExpeditable bool // a reader can shorten the wait

	denials      int // consecutive, of reviews or of the informer
	startDenials denialCounter
	failing      wait.Backoff
	pending      wait.Backoff
	// contradicted is the state that follows from the answers to informers, which reviews or
	// discovery contradict. It is empty while they agree.
	contradicted State
	pacer        reviewPacer
	again        time.Time // when to ask once more after an event; zero for never
	// settling is until when the API server's authorizer may not have what the latest event
	// announced, although that was reviewed, or although the scope began after it; zero for never.
	settling  time.Time
	waitUntil time.Time
	waitBegan time.Time

	life life
}

// life is the state of one informer; zero while no informer runs.
type life struct {
	id         LifeID
	verb       string  // the verb that checks review
	started    Verdict // the verdict before the start
	quiet      bool    // does not change the scope's state until it has synced
	synced     bool
	check      time.Time // when to review access
	follow     time.Time // when to look the kind up again; zero for never
	again      time.Time // when to review once more after an event; zero for never
	endedAgain bool      // another watch has ended since follow was set
	suspected  bool      // a request was refused, so a review of verb alone is not enough
	unanswered int       // consecutive unanswered reviews
	denials    denialCounter
	refusals   refusalCounter

	refusedSince time.Time // the first refusal after the last served request; zero if none
	refusal      refusal   // waits until the current question is answered; zero if none

	stream    stream
	shortEnds shortEnds
}

// New returns the machine of a scope about which nothing is known. Call Start next.
func New(config *Config, now time.Time) Machine {
	return Machine{
		config:      config,
		state:       Syncing,
		since:       now,
		lastSettled: Syncing,
		failing:     config.Timing.Failing,
		pending:     config.Timing.Pending,
	}
}

// Start returns the first question.
func (m *Machine) Start(now time.Time, jitter float64) []Effect {
	s := step{Machine: m, now: now, jitter: jitter}
	s.discover()
	return s.effects
}

// Step handles an event at now, and returns the effects that the driver must execute, in order.
// jitter is random, in [0,1).
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
	case WatchBegan:
		informerStep{&s}.watchBegan(e)
	case WatchListed:
		informerStep{&s}.watchListed(e)
	case WatchEnded:
		informerStep{&s}.watchEnded(e)
	case Served:
		informerStep{&s}.served(e)
	case Failed:
		informerStep{&s}.failed(e)
	case Refused:
		informerStep{&s}.refused(e)
	case AccessMayHaveChanged:
		s.accessMayHaveChanged()
	case EventsWatched:
		s.watchEvents(e)
	case Read:
		m.readPending = true
	case Stopped:
		s.stop()
		return s.effects
	}
	s.proceed()
	return s.effects
}

// Deadline returns when the driver must pass Tick; zero for never. While a question has no answer
// so far, only a watch has a deadline.
func (m *Machine) Deadline() time.Time {
	switch {
	case m.phase == waiting:
		if expedited := m.waitBegan.Add(m.config.Timing.ExpediteAfter); m.waitExpeditable && m.readPending &&
			expedited.Before(m.waitUntil) {
			return expedited
		}
		return m.waitUntil
	case m.phase == running && m.question.id == 0:
		return earlier(earlier(m.life.check, m.life.follow), m.life.streamDue(&m.config.Timing))
	case m.phase == running:
		return m.life.streamDue(&m.config.Timing)
	default:
		return time.Time{}
	}
}

// HasRead reports whether there is an unused Read.
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
