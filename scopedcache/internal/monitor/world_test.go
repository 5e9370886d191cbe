package monitor

import (
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
)

// ticks is a time relative to now, in small integers.
type ticks int8

const (
	unset   ticks = 100
	horizon ticks = -4 // longer ago makes no difference
	tick          = time.Second
)

var (
	epoch0       = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	errServer    = errors.New("the server failed")
	errForbidden = apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	errNotFound  = apierrors.NewNotFound(schema.GroupResource{}, "")
	errNoMatch   = &meta.NoKindMatchError{}

	oneMapping = &meta.RESTMapping{
		Resource: schema.GroupVersionResource{Resource: "ones"},
		Scope:    meta.RESTScopeNamespace,
	}
	otherMapping = &meta.RESTMapping{Resource: schema.GroupVersionResource{Resource: "ones"}, Scope: meta.RESTScopeRoot}

	errs     = []error{nil, errServer, errForbidden, errNotFound, errNoMatch, ErrEndsAtOnce, ErrStreams}
	mappings = []*meta.RESTMapping{nil, oneMapping, otherMapping}
	states   = []State{"", Syncing, Synced, Forbidden, NotServed, Failing}

	// exploreConfig has durations in the same order as the real ones, but as small integers.
	exploreConfig = &Config{
		Interval: 2500 * time.Millisecond, // 80 % of which are two ticks
		Timing: Timing{
			ConfirmAfter:            tick,
			ConfirmReadinessUnknown: 2 * tick,
			ConfirmUnready:          3 * tick,
			ConfirmEvery:            tick,
			Confirmations:           2,
			AfterEvent:              tick,
			FirstGap:                tick,
			MaxGap:                  2 * tick,
			RarerWatched:            2,
			ExpediteAfter:           tick,
			AtOnce:                  tick,
			Lasts:                   2 * tick,
			StreamedList:            3 * tick,
			Follow:                  tick,
			Failing:                 wait.Backoff{Duration: tick, Factor: 2, Steps: 1},
			Pending: wait.Backoff{
				Duration: tick,
				Factor:   2,
				Steps:    1,
			},
		},
	}
)

func indexOf[T comparable](list []T, value T) int8 {
	for i, v := range list {
		if v == value {
			return int8(i)
		}
	}
	panic(errors.Errorf("%v is not one of the values that the exploration knows", value))
}

// world is the state of a machine and its open question, in a form that is equal for equivalent
// states. Times are relative to now, and IDs are replaced by constants.
type world struct {
	state, stateErr, lastSettled, phase     int8
	purpose, asked, refusalErr              int8 // of the question; asked is the question's kind
	refusalSince, refusalSent               ticks
	mapping, denials, contradicted          int8
	distrust                                bool
	startDenials                            counted
	failing, pending                        int8
	pacerLast                               ticks
	pacerGap                                ticks
	again                                   ticks
	accessTaken, accessPending, readPending bool
	eventsWatched                           bool
	settling                                ticks
	waitUntil, waitBegan                    ticks
	expeditable                             bool
	life                                    worldLife
}

type counted struct {
	count, ready      int8
	first, firstReady ticks
}

type worldLife struct {
	alive, quiet, synced, suspected bool
	started, unanswered             int8
	check, again, follow            ticks
	endedAgain                      bool
	denials                         counted
	refusals                        struct {
		since, first ticks
		count        int8
	}
	refusedSince              ticks
	pendingErr                int8
	pendingSince, pendingSent ticks
	watching                  ticks // since when
	watchLists                bool
	shortEnds                 struct {
		count     int8
		first     ticks
		err       int8
		confirmed bool
	}
}

// The kinds of questions.
const (
	asksMapping   = int8(forMapping)
	asksReview    = int8(forReview)
	asksReadiness = int8(forReadiness)
)

// The IDs that a decoded machine uses.
const (
	questionID QuestionID = 1
	lifeID     LifeID     = 2
	staleQ     QuestionID = 3
	staleL     LifeID     = 4
	lastID                = 9
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

func (c counted) counter() denialCounter {
	return denialCounter{count: int(c.count), first: at(c.first), ready: int(c.ready), firstReady: at(c.firstReady)}
}

func countedOf(d denialCounter) counted {
	most := exploreConfig.Timing.Confirmations
	return counted{
		count:      int8(min(d.count, most)),
		first:      ticksOf(d.first),
		ready:      int8(min(d.ready, most)),
		firstReady: ticksOf(d.firstReady),
	}
}

func backoffOf(index int8) wait.Backoff {
	b := exploreConfig.Timing.Failing
	for range index {
		b.Step()
	}
	return b
}

func indexOfBackoff(b wait.Backoff) int8 { return int8(exploreConfig.Timing.Failing.Steps - b.Steps) }

// machine returns the machine that w describes.
func (w *world) machine() *Machine {
	m := &Machine{
		config:      exploreConfig,
		state:       states[w.state],
		stateErr:    errs[w.stateErr],
		since:       epoch0,
		lastSettled: states[w.lastSettled],
		phase:       phase(w.phase),
		mapping:     mappings[w.mapping],
		distrust:    w.distrust,
		lastID:      lastID,
		denials: int(
			w.denials),
		startDenials: w.startDenials.counter(),
		failing:      backoffOf(w.failing),
		pending: backoffOf(
			w.pending),
		contradicted:    states[w.contradicted],
		pacer:           reviewPacer{last: at(w.pacerLast), gap: time.Duration(w.pacerGap) * tick},
		again:           at(w.again),
		accessTaken:     w.accessTaken,
		accessPending:   w.accessPending,
		readPending:     w.readPending,
		eventsWatched:   w.eventsWatched,
		settling:        at(w.settling),
		waitUntil:       at(w.waitUntil),
		waitBegan:       at(w.waitBegan),
		waitExpeditable: w.expeditable,
	}
	if w.purpose != 0 {
		m.question = question{
			id:      questionID,
			kind:    questionKind(w.asked),
			purpose: purpose(w.purpose),
			refusal: refusal{err: errs[w.refusalErr], since: at(w.refusalSince), sent: at(w.refusalSent)},
		}
	}
	if l := &w.life; l.alive {
		m.life = life{
			id:         lifeID,
			verb:       "watch",
			started:    Verdict(l.started),
			quiet:      l.quiet,
			synced:     l.synced,
			check:      at(l.check),
			again:      at(l.again),
			follow:     at(l.follow),
			endedAgain: l.endedAgain,
			suspected:  l.suspected,
			unanswered: int(l.unanswered),
			denials:    l.denials.counter(),
			refusals: refusalCounter{
				since:             at(l.refusals.since),
				firstContradicted: at(l.refusals.first),
				count:             int(l.refusals.count),
			},
			refusedSince: at(l.refusedSince),
			refusal: refusal{
				err:   errs[l.pendingErr],
				since: at(l.pendingSince),
				sent:  at(l.pendingSent),
			},
			stream: stream{began: at(l.watching), lists: l.watchLists},
			shortEnds: shortEnds{
				count:     int(l.shortEnds.count),
				first:     at(l.shortEnds.first),
				err:       errs[l.shortEnds.err],
				confirmed: l.shortEnds.confirmed,
			},
		}
	}
	return m
}

// take returns the world that describes the machine.
func (w world) take(m *Machine) world {
	n := world{
		state:       indexOf(states, m.state),
		stateErr:    indexOf(errs, m.stateErr),
		lastSettled: indexOf(states, m.lastSettled),
		phase:       int8(m.phase),
		purpose:     int8(m.question.purpose),
		asked:       int8(m.question.kind),
		mapping: indexOf(mappings,
			m.mapping),
		denials:      int8(min(m.denials, 2)),
		contradicted: indexOf(states, m.contradicted),
		distrust:     m.distrust,
		startDenials: countedOf(m.startDenials),
		failing:      indexOfBackoff(m.failing),
		pending:      indexOfBackoff(m.pending),
		pacerLast: ticksOf(
			m.pacer.last),
		pacerGap:      ticks(m.pacer.gap / tick),
		again:         ticksOf(m.again),
		accessTaken:   m.accessTaken,
		accessPending: m.accessPending,
		readPending:   m.readPending,
		eventsWatched: m.eventsWatched,
		settling:      ticksOf(m.settling),
		waitUntil:     unset,
		waitBegan:     unset,
		refusalSince:  unset,
		refusalSent:   unset,
	}
	if m.phase == waiting {
		n.waitUntil, n.waitBegan, n.expeditable = ticksOf(m.waitUntil), max(ticksOf(m.waitBegan), -1), m.waitExpeditable
	}
	if m.question.purpose == aboutRefusal {
		n.refusalErr, n.refusalSince, n.refusalSent = indexOf(errs, m.question.refusal.err),
			ticksOf(m.question.refusal.since), ticksOf(m.question.refusal.sent)
	}
	none := worldLife{
		check:        unset,
		again:        unset,
		follow:       unset,
		denials:      counted{first: unset, firstReady: unset},
		refusedSince: unset,
		pendingSince: unset,
		pendingSent:  unset,
		watching:     unset,
	}
	none.shortEnds.first = unset
	none.refusals.since, none.refusals.first = unset, unset
	n.life = none
	if l := &m.life; l.id != 0 {
		n.life = worldLife{
			alive:      true,
			quiet:      l.quiet,
			synced:     l.synced,
			suspected:  l.suspected,
			started:    int8(l.started),
			unanswered: int8(l.unanswered),
			check:      ticksOf(l.check),
			again:      ticksOf(l.again),
			follow:     max(ticksOf(l.follow), 0),
			endedAgain: l.endedAgain,
			denials:    countedOf(l.denials),
			refusedSince: ticksOf(
				l.refusedSince),
			pendingErr: indexOf(errs,
				l.refusal.err),
			pendingSince: ticksOf(l.refusal.since),
			pendingSent:  ticksOf(l.refusal.sent),
		}
		n.life.refusals.since, n.life.refusals.first = ticksOf(l.refusals.since), ticksOf(l.refusals.firstContradicted)
		n.life.refusals.count = int8(min(l.refusals.count, exploreConfig.Timing.Confirmations))
		n.life.watching, n.life.watchLists = atLeast(ticksOf(l.stream.began), -3), l.stream.lists
		n.life.shortEnds.count = int8(min(l.shortEnds.count, exploreConfig.Timing.Confirmations))
		n.life.shortEnds.first = atLeast(ticksOf(l.shortEnds.first), -1)
		n.life.shortEnds.err, n.life.shortEnds.confirmed = indexOf(errs, l.shortEnds.err), l.shortEnds.confirmed
		if l.started != Unaskable || l.synced || l.quiet {
			n.life.started = 0 // makes no difference any more
		}
		if n.life.check < 0 {
			n.life.check = 0
		}
	}
	return n.canonical()
}

// canonical removes differences that cannot matter any more.
func (w world) canonical() world {
	if w.phase == int8(stopped) {
		return world{phase: int8(stopped)}
	}
	if w.settling != unset && w.settling <= 0 || !w.eventsWatched {
		w.settling = unset
	}
	if w.pacerLast != unset && w.pacerLast <= horizon {
		w.pacerLast, w.pacerGap = unset, 0
	}
	l := &w.life
	for _, c := range []*counted{&w.startDenials, &l.denials} {
		c.first, c.firstReady = atLeast(c.first, -3), atLeast(c.firstReady, -1)
	}
	l.refusedSince, l.pendingSince, w.refusalSince = atLeast(l.refusedSince, -3), atLeast(l.pendingSince, -3),
		atLeast(w.refusalSince, -3)
	l.refusals.since = atLeast(l.refusals.since, -3)
	l.watching, l.shortEnds.first = atLeast(l.watching, -3), atLeast(l.shortEnds.first, -1)
	// Refusals that belong to no current row are counted from zero.
	if since := l.refusals.since; since != l.refusedSince && since != w.refusalSince {
		l.refusals.since, l.refusals.first, l.refusals.count = unset, unset, 0
	}
	l.refusals.first = atLeast(l.refusals.first, -2)
	w.refusalSent, l.pendingSent = relevant(w.refusalSent, l.refusals.first), relevant(l.pendingSent, l.refusals.first)
	if w.refusalErr == indexOf(errs, error(errForbidden)) && l.refusals.since == unset {
		w.refusalSince = atLeast(w.refusalSince, -1)
	}
	return w
}

func atLeast(t, least ticks) ticks {
	if t == unset {
		return unset
	}
	return max(t, least)
}

// relevant returns when a refused request was sent, as far as that makes a difference: before the
// first contradiction, at the same time, or ConfirmAfter later.
func relevant(sent, first ticks) ticks {
	switch {
	case sent == unset:
		return unset
	case first == unset:
		return 0
	}
	return min(max(sent, first), first+1)
}

// advance returns the world after some time.
func (w world) advance(by ticks) world {
	if w.phase == int8(stopped) {
		return w
	}
	l := &w.life
	for _, t := range []*ticks{&w.refusalSince, &w.refusalSent, &w.startDenials.first, &w.startDenials.firstReady,
		&w.pacerLast, &w.settling, &w.again, &w.waitUntil, &w.waitBegan,
		&l.check, &l.again, &l.follow, &l.denials.first, &l.denials.firstReady, &l.refusals.since, &l.refusals.first,
		&l.refusedSince, &l.pendingSince, &l.pendingSent, &l.watching, &l.shortEnds.first} {
		if *t != unset {
			*t = max(*t-by, horizon)
		}
	}
	if w.waitBegan != unset {
		w.waitBegan = max(w.waitBegan, -1)
	}
	for _, t := range []*ticks{&w.waitUntil, &l.check, &w.again, &l.again, &l.follow} {
		if *t != unset {
			*t = max(*t, 0)
		}
	}
	return w.canonical()
}
