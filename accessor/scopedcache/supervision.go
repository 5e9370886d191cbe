package scopedcache

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
)

// supervision is the life of one informer as its keeper sees it. Everything is the keeper's; what asks the API server does so
// beside it, one question at a time, and hands over what to do about the answer.
type supervision struct {
	*scope
	running  *informer
	question question
	verb     string  // that is asked for while it runs
	started  verdict // on the question whether it may
	doubt    State   // what it is said to be against reviews, until it has synced

	check   *alarm      // of the right
	again   time.Time   // when to ask once more after an event
	answers chan func() // what to do about the answer to the question under way
	asking  bool        // a question is under way

	doubts         doubts
	suspected      bool // the informer was denied, so that verb alone does not tell
	silent         int  // answers that were none, in a row
	contradictions contradictions

	over  bool
	ended end
}

// end is how the life of an informer ended.
type end struct {
	synced bool  // it had synced
	failed bool  // it could not be started
	doubt  State // set if the API server's answers to the informer and to reviews contradict each other
}

// supervise runs an informer until the right is lost, the kind is gone, or ctx is done.
func (s *scope) supervise(ctx context.Context, mapping *meta.RESTMapping, started verdict, listOnly bool, doubt State) end {
	v := &supervision{scope: s, question: s.question(mapping), verb: "watch", started: started, doubt: doubt, answers: make(chan func(), 1)}
	var poll time.Duration
	if listOnly {
		poll, v.verb = s.interval(), "list"
	} // else watch alone: it cannot be lost without being noticed, and lists are not needed any more
	var err error
	if v.running, err = s.newInformer(mapping, poll); err == nil {
		v.running.quiet.Store(doubt != "")
		err = s.start(v.running)
	}
	if v.running != nil {
		defer s.stop(v.running)
	}
	if err != nil {
		s.fail(err)
		return end{failed: true}
	}
	v.run(ctx)
	return v.ended
}

func (s *supervision) run(ctx context.Context) {
	s.check = newAlarm(s.interval())
	defer s.check.Stop()
	synced, changed := s.running.shared.HasSyncedChecker().Done(), s.rightsChanged
	for !s.over {
		check, refusals := s.check.C, s.running.refusals
		if s.asking {
			check, refusals = nil, nil // they wait
		}
		select {
		case <-ctx.Done():
			return
		case <-synced:
			synced, s.ended.synced, s.doubt = nil, true, ""
			s.synced(s.running)
		case <-changed:
			changed = nil // however many follow, until the API server was asked
			s.again = s.pace.event(s.check)
		case <-check:
			changed = s.rightsChanged
			verbs := []string{s.verb}
			if s.suspected {
				verbs = []string{"list", s.verb}
			}
			s.ask(func() func() {
				verdict, err := s.cache.reviewer.may(ctx, s.question, verbs...)
				return func() { s.judge(verdict, err) }
			})
		case refused := <-refusals:
			s.ask(func() func() {
				found, state, err := s.lookInto(ctx, refused)
				return func() { s.conclude(refused, found, state, err) }
			})
		case act := <-s.answers:
			if s.asking = false; ctx.Err() == nil {
				act()
			}
		case <-s.idleness.C:
			s.stopIfIdle()
		}
	}
}

// ask asks the API server beside the keeper.
func (s *supervision) ask(question func() (act func())) {
	s.asking = true
	s.cache.running.Go(func() { s.answers <- question() }) // the keeper, which waits for it or ends, is one of those running
}

// lost ends the informer.
func (s *supervision) lost(state State, err error) {
	s.stop(s.running) // before it is told
	s.become(state, err)
	s.over = true
}

// judge takes an answer about the right, and says when to ask again.
func (s *supervision) judge(verdict verdict, err error) {
	next := s.interval()
	if !s.again.IsZero() {
		next, s.again = min(next, max(time.Until(s.again), 0)), time.Time{}
	}
	if verdict == allowed {
		s.suspected = false
	}
	if s.silent++; verdict != unanswered {
		s.silent = 0
	}
	if verdict == unknown || s.silent >= confirmations {
		s.running.watchAgain() // which the API server authorises anew
		s.silent = 0
	}
	gone, soon := s.doubts.judge(verdict, time.Now())
	if gone {
		s.lost(Forbidden, err)
		return
	}
	if soon > 0 {
		next = soon
	}
	s.check.in(next)
}

// conclude takes what was found out about a refusal.
func (s *supervision) conclude(refused refusal, found finding, state State, err error) {
	first := !s.ended.synced && s.doubt == "" && s.started == unknown // nobody but the informer can be asked
	switch {
	case found == borneOut:
		s.lost(state, err)
	case found == doubtful:
		if s.suspected = true; s.doubts.denials == 0 {
			s.check.in(0) // let the doubts decide
		}
	case found == contradicted && (first || s.contradictions.certain(refused, time.Now())):
		s.lost(state, refused.err)
		s.ended.doubt = state
	}
}

// finding is what becomes of a refusal when it was looked into.
type finding int

const (
	unclear      finding = iota // nobody answers; the informer goes on trying
	borneOut                    // it is so
	doubtful                    // reviews deny it too
	contradicted                // reviews, or discovery, say otherwise
)

// lookInto asks reviews about a 403 to the informer, and discovery about a 404. state and err are what the scope is if that
// is so.
func (s *supervision) lookInto(ctx context.Context, refused refusal) (found finding, state State, err error) {
	if apierrors.IsForbidden(refused.err) {
		switch v, _ := s.cache.reviewer.may(ctx, s.question, "list", s.verb); {
		case v.isDenial():
			return doubtful, Forbidden, nil
		case v == allowed, v == unknown:
			return contradicted, Forbidden, nil
		}
		return unclear, "", nil
	}
	if s.cache.reviewer.ready(ctx) == deniedUnready && time.Since(refused.since) < confirmUnready {
		return unclear, "", nil
	}
	s.distrusted = true
	fresh, err := s.scope.mapping(ctx)
	switch {
	case meta.IsNoMatchError(err):
		return borneOut, NotServed, err
	case err != nil:
		return unclear, "", nil
	case !sameMapping(fresh, s.question.mapping):
		return borneOut, Syncing, nil // the kind is another one now
	}
	return contradicted, NotServed, nil
}
