package monitor

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
)

// isCurrent reports whether the life is that of the running informer.
func (m *Machine) isCurrent(id LifeID) bool { return m.phase == running && id == m.life.id }

// informerStep is a step that concerns the running informer.
type informerStep struct{ *step }

func (s informerStep) informerSynced(e InformerSynced) {
	if !s.isCurrent(e.Life) || s.life.synced {
		return
	}
	s.life.synced, s.life.quiet = true, false
	s.life.stream.lists, s.life.shortEnds = false, shortEnds{}
	s.emit(Serve(e))
	s.settle()
}

// served ends a row of refusals, and failures. It is no evidence about watches: only a watch that
// lasts is.
func (s informerStep) served(e Served) {
	if !s.isCurrent(e.Life) {
		return
	}
	s.life.refusedSince, s.life.refusal = time.Time{}, refusal{}
	s.settle()
}

// settle sets the state of an informer whose requests are served.
func (s informerStep) settle() {
	switch {
	case s.life.quiet:
	case s.life.shortEnds.confirmed:
		s.setState(Failing, s.life.shortEnds.err)
	case s.life.synced:
		s.setState(Synced, nil)
	default:
		s.setState(Syncing, nil)
	}
}

// proceed starts the action whose deadline has come. If none has, proceed examines a refusal that
// waits.
func (s informerStep) proceed() {
	s.judgeStream()
	switch {
	case s.question.id != 0:
	case !s.now.Before(s.life.check):
		s.checkAccess()
	case s.life.refusal.err != nil:
		s.lookInto()
	case !s.life.follow.IsZero() && !s.now.Before(s.life.follow):
		s.emit(AskMapping{Question: s.ask(forMapping, follow, refusal{}), Distrust: true, Sure: true})
	}
}

func (s informerStep) failed(e Failed) {
	if !s.isCurrent(e.Life) {
		return
	}
	s.requestFailed()
	if !s.life.quiet {
		s.setState(Failing, e.Err)
	}
}

// refused records a refusal, which lookInto examines later.
func (s informerStep) refused(e Refused) {
	if !s.isCurrent(e.Life) {
		return
	}
	s.requestFailed()
	if !s.life.quiet {
		s.setState(Failing, e.Err)
	}
	if s.life.refusedSince.IsZero() {
		s.life.refusedSince = e.At
	}
	s.life.refusal = refusal{err: e.Err, since: s.life.refusedSince, sent: e.Sent}
}

// lookInto starts a review after a 403 to the informer, and a readiness check before discovery
// after a 404.
func (s informerStep) lookInto() {
	refused := s.life.refusal
	s.life.refusal = refusal{}
	if apierrors.IsForbidden(refused.err) {
		s.emit(AskReview{
			Question: s.ask(forReview, aboutRefusal, refused),
			Mapping:  s.mapping,
			Verbs:    []string{"list", s.life.verb},
		})
		return
	}
	s.emit(AskReadiness{Question: s.ask(forReadiness, aboutRefusal, refused)})
}

// reviewedRefusal decides what a 403 to the informer means.
func (s informerStep) reviewedRefusal(refused refusal, e Reviewed) {
	switch {
	case e.Verdict.IsDenial(): // reviews deny access, too, so they decide
		if s.life.suspected = true; s.life.denials.count == 0 {
			s.life.check = s.now
		}
	case e.Verdict == Allowed, e.Verdict == Unaskable:
		s.contradict(Forbidden, refused)
	}
}

// readied asks discovery about a 404. An API server that is not ready does not know all kinds, so
// readied first waits until the refusals have lasted for ConfirmUnready.
func (s informerStep) readied(e Readied) {
	was := s.answered(forReadiness, e.Question)
	if was.purpose != aboutRefusal || !e.Ready && s.now.Sub(was.refusal.since) < s.config.Timing.ConfirmUnready {
		return
	}
	s.distrust = true
	s.emit(AskMapping{Question: s.ask(forMapping, aboutRefusal, was.refusal), Distrust: true})
}

// remapped decides what a 404 to the informer means.
func (s informerStep) remapped(refused refusal, e Mapped) {
	switch {
	case meta.IsNoMatchError(e.Err):
		s.lose(NotServed, e.Err, "")
	case e.Err != nil:
	case !sameResource(e.Mapping, s.mapping):
		s.lose(Syncing, nil, "") // the kind has another resource or scope now
	default:
		s.contradict(NotServed, refused)
	}
}

func sameResource(a, b *meta.RESTMapping) bool {
	return a.Resource == b.Resource && a.Scope.Name() == b.Scope.Name()
}

// followed decides what the kind's resource means that was looked up after the end of a watch. That
// the kind is not served is left to requests, which are refused then.
func (s informerStep) followed(e Mapped) {
	again := s.life.endedAgain
	s.life.follow, s.life.endedAgain = time.Time{}, false
	switch {
	case meta.IsNoMatchError(e.Err), apierrors.IsForbidden(e.Err), apierrors.IsUnauthorized(e.Err):
		s.followLater()
	case e.Err != nil:
		s.follow()
	case !sameResource(e.Mapping, s.mapping):
		s.distrust = true
		s.lose(Syncing, nil, "")
	case again:
		s.life.follow = s.now.Add(s.config.Timing.Follow)
	case s.life.verb == "list": // no watch ends early
		s.followLater()
	}
}

// follow has the kind looked up soon.
func (s informerStep) follow() {
	follow := s.config.Timing.Follow
	s.life.follow = s.now.Add(follow + time.Duration(s.jitter*float64(follow)))
}

// followLater has the kind looked up a while after the next review.
func (s informerStep) followLater() {
	s.life.follow = s.now.Add(s.config.Timing.Follow + s.shortInterval())
}

// contradict handles a refusal that reviews or discovery contradict. The refusal counts at once if
// reviews are not possible, and the informer has not synced and is not quiet. Otherwise the refusal
// counts when it is confirmed.
func (s informerStep) contradict(state State, refused refusal) {
	onlyWitness := s.life.started == Unaskable && !s.life.synced && !s.life.quiet
	if onlyWitness || s.life.refusals.confirmed(&s.config.Timing, refused, s.now) {
		s.lose(state, refused.err, state)
	}
}

// checkAccess reviews the access of the running informer.
func (s informerStep) checkAccess() {
	verbs := []string{s.life.verb}
	if s.life.suspected {
		verbs = []string{"list", s.life.verb}
	}
	s.emit(AskReview{Question: s.ask(forReview, check, refusal{}), Mapping: s.mapping, Verbs: verbs})
	s.acceptAccess()
}

// judge decides whether the informer continues, and when the next review comes.
func (s informerStep) judge(e Reviewed) {
	next := s.interval()
	if e.Verdict == Unanswered || e.Verdict == Unaskable {
		next = s.shortInterval() // what an event announced is still unknown; only a new watch tells
	}
	if !s.life.again.IsZero() {
		next, s.life.again = min(next, max(s.life.again.Sub(s.now), 0)), time.Time{}
	}
	if e.Verdict == Allowed {
		s.life.suspected = false
	}
	if s.life.unanswered++; e.Verdict != Unanswered {
		s.life.unanswered = 0
	}
	if e.Verdict == Unaskable || s.life.unanswered >= s.config.Timing.Confirmations {
		if s.life.shortEnds.count == 0 { // else the next watch is authorized soon, and one must last
			s.emit(RestartWatch{Life: s.life.id}) // which the API server authorizes anew
		}
		s.life.unanswered = 0
	}
	lost, soon := s.life.denials.observe(&s.config.Timing, e.Verdict, s.now)
	if lost {
		s.lose(Forbidden, e.Err, "")
		return
	}
	if soon > 0 {
		next = soon
	}
	s.life.check = s.now.Add(next)
}

// lose ends the informer, because access or the kind is gone.
func (s informerStep) lose(state State, err error, contradicted State) {
	s.emit(StopInformer{Life: s.life.id}) // before readers and handlers learn of it
	s.setState(state, err)
	s.endLife(contradicted, false)
}
