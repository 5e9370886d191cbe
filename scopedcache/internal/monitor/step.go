package monitor

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/latchkey-dev/latchkey/internal/jitter"
)

// step is one call of Machine.Step.
type step struct {
	*Machine
	now     time.Time
	jitter  float64
	effects []Effect
}

func (s *step) emit(e Effect) { s.effects = append(s.effects, e) }

// ask records a new question, and returns its ID.
func (s *step) ask(kind questionKind, about purpose, refused refusal) QuestionID {
	s.lastID++
	s.question = question{id: QuestionID(s.lastID), kind: kind, purpose: about, refusal: refused}
	return s.question.id
}

// interval returns the time until the next review if no event comes before. While events are
// watched, reviews are rarer, but the authorizer of an API server may learn of an event much later:
// so one more review comes as without events.
func (s *step) interval() time.Duration {
	if s.eventsWatched && !s.now.Before(s.settling) {
		return time.Duration(s.config.Timing.RarerWatched) * s.shortInterval()
	}
	return s.shortInterval()
}

// firstInterval is interval for the first review after a start. Many scopes start at once, so while
// events are watched their reviews are spread further: half of the time to all of it.
func (s *step) firstInterval(started Verdict) time.Duration {
	if !s.eventsWatched || started == Unaskable || s.now.Before(s.settling) {
		return s.shortInterval()
	}
	half := time.Duration(s.config.Timing.RarerWatched) * s.config.Interval / 2
	return half + time.Duration(s.jitter*float64(half))
}

// shortInterval returns 80 to 100 % of Config.Interval, by jitter.
func (s *step) shortInterval() time.Duration {
	least := s.config.Interval * 8 / 10
	return least + time.Duration(s.jitter*.25*float64(least))
}

// setState changes the state of the scope. setState emits nothing if neither the state nor the text
// of the error changes.
func (s *step) setState(state State, err error) {
	if s.state == state && textOf(s.stateErr) == textOf(err) {
		return
	}
	before := s.lastSettled
	if s.state != state {
		s.since = s.now
	}
	s.state, s.stateErr = state, err
	if state.IsSettled() {
		s.lastSettled = state
	}
	s.emit(SetState{State: state, Err: err, Since: s.since, Before: before})
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// fail reports an error that says nothing about access. It changes nothing if more is known.
func (s *step) fail(err error) {
	if s.state != Forbidden && s.state != NotServed {
		s.setState(Failing, err)
	}
}

// proceed starts the action whose deadline has come.
func (s *step) proceed() {
	if s.phase == running {
		informerStep{s}.proceed()
		return
	}
	due := s.Deadline()
	if due.IsZero() || s.now.Before(due) {
		return
	}
	if s.waitExpeditable {
		s.readPending = false
	}
	s.discover()
}

// discover asks for the kind's resource.
func (s *step) discover() {
	s.phase = discovering
	s.emit(AskMapping{Question: s.ask(forMapping, startUp, refusal{}), Distrust: s.distrust})
}

// mapped handles the answer of discovery.
func (s *step) mapped(e Mapped) {
	switch was := s.answered(forMapping, e.Question); was.purpose {
	case aboutRefusal:
		informerStep{s}.remapped(was.refusal, e)
	case follow:
		informerStep{s}.followed(e)
	case startUp:
		switch {
		case meta.IsNoMatchError(e.Err):
			s.contradicted = ""
			s.setState(NotServed, e.Err)
			s.wait(jitter.Step(&s.pending, s.jitter), true)
		case e.Err != nil:
			s.fail(e.Err)
			s.wait(s.untilReview(true), false)
		default:
			s.phase, s.mapping, s.distrust = reviewing, e.Mapping, false
			s.emit(AskReview{
				Question:   s.ask(forReview, startUp, refusal{}),
				Mapping:    e.Mapping,
				Verbs:      []string{"list", "watch"},
				OrListOnly: s.config.PollWithoutWatch,
			})
		}
	}
}

// reviewed handles the answer of a review.
func (s *step) reviewed(e Reviewed) {
	switch was := s.answered(forReview, e.Question); was.purpose {
	case startUp:
		s.reviewedAtStart(e)
	case check:
		informerStep{s}.judge(e)
	case aboutRefusal:
		informerStep{s}.reviewedRefusal(was.refusal, e)
	}
}

// reviewedAtStart decides whether an informer starts.
func (s *step) reviewedAtStart(e Reviewed) {
	lost, _ := s.startDenials.observe(&s.config.Timing, e.Verdict, s.now)
	switch {
	case e.Verdict == Denied, e.Verdict == DeniedReadinessUnknown, lost:
		s.contradicted = ""
		s.setState(Forbidden, e.Err)
		s.denials++
		s.distrust = true                   // no request shows that the kind has another resource by now
		s.failing = s.config.Timing.Failing // else a scope that stays Forbidden would add up all outages
		s.wait(s.untilReview(false), false)
	case e.Verdict == DeniedUnready, e.Verdict == Unanswered:
		s.fail(e.Err)
		s.wait(s.untilReview(true), false)
	default:
		s.startInformer(e)
	}
}

// untilReview returns the delay until the next review after a denial, or after an error. The delay
// after the first denial is short, because an API server in its first moments may have denied
// legitimate access. A scope that is Forbidden is reviewed after interval, also after errors: else
// its access could come back long after the API server has.
func (s *step) untilReview(failed bool) time.Duration {
	switch {
	case failed && s.state == Forbidden:
		return min(jitter.Step(&s.failing, s.jitter), max(s.interval(), s.config.Timing.Failing.Duration))
	case failed:
		return jitter.Step(&s.failing, s.jitter)
	case s.denials == 1:
		return min(s.config.Timing.ConfirmAfter, s.interval())
	default:
		return s.interval()
	}
}

func (s *step) startInformer(e Reviewed) {
	if s.contradicted == "" {
		s.setState(Syncing, nil)
	}
	s.lastID++
	s.phase, s.again = running, time.Time{}
	s.life = life{
		id:      LifeID(s.lastID),
		verb:    "watch",
		started: e.Verdict,
		quiet:   s.contradicted != "",
		check:   s.now.Add(s.firstInterval(e.Verdict)),
	}
	var poll time.Duration
	if e.ListOnly {
		s.life.verb, poll = "list", s.shortInterval()
		informerStep{s}.followLater()
	} // else review watch alone: only reviews notice its revocation, and lists are not needed any more
	s.emit(StartInformer{Life: s.life.id, Mapping: s.mapping, Poll: poll})
	s.acceptAccess()
}

// startFailed waits before the next attempt to start an informer.
func (s *step) startFailed(e InformerStartFailed) {
	if !s.isCurrent(e.Life) {
		return
	}
	s.emit(StopInformer{Life: e.Life})
	s.fail(e.Err)
	s.endLife("", true)
}

// endLife decides the next action after an informer has ended.
func (s *step) endLife(contradicted State, failed bool) {
	synced := s.life.synced
	s.distrust = s.distrust || !s.life.follow.IsZero()
	s.life, s.question, s.mapping = life{}, question{}, nil
	if synced {
		s.denials, s.failing, s.pending = 0, s.config.Timing.Failing, s.config.Timing.Pending
	}
	s.contradicted = contradicted
	switch {
	case contradicted == Forbidden: // by something else than RBAC, which causes no event
		s.denials++
		s.wait(min(s.untilReview(false), s.shortInterval()), false)
	case contradicted != "":
		s.wait(jitter.Step(&s.pending, s.jitter), true)
	case failed:
		s.wait(jitter.Step(&s.failing, s.jitter), false)
	case !synced: // API servers behind one address may differ about a kind
		s.wait(jitter.Step(&s.pending, s.jitter), true)
	default:
		s.discover()
	}
}

// wait delays the next question. A reader can shorten an expeditable wait.
func (s *step) wait(d time.Duration, expeditable bool) {
	if !s.again.IsZero() {
		d, s.again = min(d, max(s.again.Sub(s.now), 0)), time.Time{}
	}
	s.phase, s.waitBegan, s.waitUntil, s.waitExpeditable = waiting, s.now, s.now.Add(d), expeditable
	s.acceptAccess()
}

// accessMayHaveChanged brings the next review forward. Only the first event in each wait or check
// has this effect.
func (s *step) accessMayHaveChanged() {
	s.accessPending = true
	if (s.phase == waiting || s.phase == running) && !s.accessTaken {
		s.takeAccess()
	}
}

// watchEvents records whether RBAC events are reported. When they are not any more, the next review
// comes as soon as if they had never been. The reviews of many scopes are spread over Interval.
func (s *step) watchEvents(e EventsWatched) {
	if settled := e.Latest.Add(s.config.Interval); e.Watched && settled.After(s.now) && settled.After(s.settling) {
		s.settling = settled
	}
	stops := s.eventsWatched && !e.Watched
	if s.eventsWatched = e.Watched; !stops {
		return
	}
	latest := s.now.Add(time.Duration(s.jitter * float64(s.config.Interval)))
	switch {
	case s.phase == waiting && latest.Before(s.waitUntil):
		s.waitUntil = latest
	case s.phase == running && latest.Before(s.life.check):
		s.life.check = latest
	}
}

// acceptAccess allows the next RBAC event to bring a review forward. That event may be pending
// already.
func (s *step) acceptAccess() {
	s.accessTaken = false
	if s.accessPending {
		s.takeAccess()
	}
}

func (s *step) takeAccess() {
	s.accessTaken, s.accessPending = true, false
	if s.phase == waiting {
		s.again = s.pace(&s.waitUntil, s.state == Forbidden)
	} else {
		s.life.again = s.pace(&s.life.check, true)
	}
}

// pace brings due forward after an RBAC event, and returns when to ask once more. However many
// events come, a review comes within Config.Interval, and one more within Config.Interval of it.
// What is no review has the backoff of something else.
func (s *step) pace(due *time.Time, forReview bool) (again time.Time) {
	latest := *due
	if forReview {
		latest = earlier(latest, s.now.Add(s.shortInterval()))
	}
	delay, more := s.pacer.next(&s.config.Timing, s.now, latest, s.jitter)
	*due = earlier(latest, s.now.Add(delay))
	first := max(due.Sub(s.now), 0)
	if s.question.id != 0 { // it may have been asked before the event
		first = s.config.Interval
	}
	s.settling = s.now.Add(first + s.config.Interval)
	return s.now.Add(more)
}

// stop ends the scope, and its informer if one runs.
func (s *step) stop() {
	if s.phase == running {
		s.emit(StopInformer{Life: s.life.id})
	}
	s.phase, s.life, s.question = stopped, life{}, question{}
}
