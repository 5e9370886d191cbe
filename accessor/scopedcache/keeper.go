package scopedcache

import (
	"context"
	"io"
	"math/rand/v2"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// afterEvent is how long after an event about RBAC the API server is asked: its own informers hear of it in that time.
// It is asked once more after confirmAfter, in case they did not.
const afterEvent = 250 * time.Millisecond

// keep runs the scope until ctx is done: it finds the kind, asks for the right, and runs an informer until that is lost.
func (s *scope) keep(ctx context.Context) {
	failing := retries{first: time.Second, most: 30 * time.Second}
	pending := retries{first: 2 * time.Second, most: 10 * time.Second}
	s.idleness = newTicker(s.cache.own.IdleTimeout)
	defer s.idleness.Stop()
	denials := 0    // in a row, of reviews or of the informer
	var doubt State // what the informer's own refusals said against what the API server says of right and kind
	for ctx.Err() == nil {
		mapping, err := s.mapping(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case meta.IsNoMatchError(err):
			doubt = ""
			s.become(NotServed, err)
			s.pause(ctx, pending.next(), s.asked)
			continue
		case err != nil:
			s.fail(err, doubt)
			s.pause(ctx, failing.next(), nil)
			continue
		}

		verdict, listOnly, err := s.rights(ctx, mapping)
		switch {
		case ctx.Err() != nil:
			return
		case verdict == denied:
			doubt = ""
			s.become(Forbidden, err)
			denials++
			s.pause(ctx, s.untilReview(denials), nil)
			continue
		case verdict == unanswered:
			s.fail(err, doubt)
			s.pause(ctx, failing.next(), nil)
			continue
		}

		if doubt == "" {
			s.become(Syncing, nil)
		}
		end := s.run(ctx, mapping, verdict, listOnly, doubt)
		if ctx.Err() != nil {
			return
		}
		if end.synced {
			denials = 0
			failing.reset()
			pending.reset()
		}
		doubt = end.doubt
		switch {
		case doubt == Forbidden:
			denials++
			s.pause(ctx, s.untilReview(denials), nil)
		case doubt != "":
			s.pause(ctx, pending.next(), s.asked)
		case end.failed:
			s.pause(ctx, failing.next(), nil)
		}
	}
}

// untilReview is when to ask again after so many denials in a row. The first one may have been that of an API server in its
// first moment.
func (s *scope) untilReview(denials int) time.Duration {
	if denials == 1 {
		return min(confirmAfter, s.interval())
	}
	return s.interval()
}

// fail notes an error that says nothing about rights, unless more is known.
func (s *scope) fail(err error, doubt State) {
	if doubt == "" {
		s.become(Failing, err)
	}
}

// end is how the life of an informer ended.
type end struct {
	synced bool  // it had synced
	failed bool  // it could not be started
	doubt  State // set if the API server's answers to the informer and to reviews contradict each other
}

// run runs an informer until the right is lost, the kind is gone, or ctx is done.
func (s *scope) run(ctx context.Context, mapping *meta.RESTMapping, verdict verdict, listOnly bool, doubt State) (ended end) {
	var poll time.Duration
	verb := "watch" // which cannot be had without being noticed; lists are not needed any more
	if listOnly {
		poll, verb = s.interval(), "list"
	}
	running, err := s.newInformer(mapping, poll)
	if err == nil {
		running.quiet.Store(doubt != "")
		err = s.start(running)
	}
	if running != nil {
		defer s.stop(running)
	}
	if err != nil {
		s.fail(err, doubt)
		return end{failed: true}
	}
	lost := func(state State, err error) {
		s.stop(running) // before it is told
		s.become(state, err)
	}

	q := s.question(mapping)
	check := time.NewTimer(s.interval())
	defer check.Stop()
	again := time.Time{} // when to ask once more after an event
	var doubts doubts
	var contradictions contradictions
	synced := running.shared.HasSyncedChecker().Done()
	changed := s.rightsChanged
	for {
		select {
		case <-ctx.Done():
			return ended
		case <-synced:
			synced, ended.synced, doubt = nil, true, ""
			s.synced(running)
		case <-changed:
			changed = nil // however many follow, until the API server was asked
			again = time.Now().Add(confirmAfter)
			check.Reset(soonAfterEvent())
		case <-check.C:
			changed = s.rightsChanged
			next := s.interval()
			if !again.IsZero() {
				next, again = min(next, max(time.Until(again), 0)), time.Time{}
			}
			verdict, err := s.cache.reviewer.may(ctx, q, verb)
			gone, soon := doubts.judge(verdict, time.Now(), s.cache.reviewer.certainAfter())
			if gone && ctx.Err() == nil {
				lost(Forbidden, err)
				return ended
			}
			if soon > 0 {
				next = soon
			}
			check.Reset(next)
		case refused := <-running.refusals:
			found, state, err := s.lookInto(ctx, refused, mapping, q, verb)
			first := !ended.synced && doubt == "" && verdict == unknown // nobody but the informer can be asked
			switch {
			case ctx.Err() != nil:
				return ended
			case found == borneOut:
				lost(state, err)
				return ended
			case found == doubtful && doubts.first.IsZero():
				check.Reset(0) // let the doubts decide
			case found == contradicted && (first || contradictions.certain(refused, time.Now())):
				lost(state, refused.err)
				ended.doubt = state
				return ended
			}
		case <-s.idleness.C:
			s.stopIfIdle()
		}
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
func (s *scope) lookInto(ctx context.Context, refused refusal, mapping *meta.RESTMapping, q question, verb string) (found finding, state State, err error) {
	if apierrors.IsForbidden(refused.err) {
		switch v, _ := s.cache.reviewer.may(ctx, q, "list", verb); v {
		case denied:
			return doubtful, Forbidden, nil
		case allowed, unknown:
			return contradicted, Forbidden, nil
		}
		return unclear, "", nil
	}
	if s.cache.reviewer.ready(ctx) != nil {
		return unclear, "", nil
	}
	s.distrusted = true
	fresh, err := s.mapping(ctx)
	switch {
	case meta.IsNoMatchError(err):
		return borneOut, NotServed, err
	case err != nil:
		return unclear, "", nil
	case !sameMapping(fresh, mapping):
		return borneOut, Syncing, nil // the kind is another one now
	}
	return contradicted, NotServed, nil
}

// rights asks whether the informer may run. Without the right to watch it may list, if the author allows for that.
func (s *scope) rights(ctx context.Context, mapping *meta.RESTMapping) (v verdict, listOnly bool, err error) {
	q := s.question(mapping)
	v, err = s.cache.reviewer.may(ctx, q, "list", "watch")
	if v == denied && s.cache.own.AllowListOnly {
		if v, err := s.cache.reviewer.may(ctx, q, "list"); v != denied {
			return v, true, err
		}
	}
	return v, false, err
}

func (s *scope) question(mapping *meta.RESTMapping) question {
	config := s.configOf(mapping)
	return question{mapping: mapping, namespace: s.namespaceIn(mapping), labels: config.LabelSelector, fields: config.FieldSelector}
}

// configOf is what the cache's options say of the scope, with its own selectors.
func (s *scope) configOf(mapping *meta.RESTMapping) cache.Config {
	config := s.kind.config.everywhere
	if configured, ok := s.kind.config.namespaces[s.where.Namespace]; ok && mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		config = configured
	}
	config.LabelSelector = andLabels(config.LabelSelector, s.where.LabelSelector)
	config.FieldSelector = andFields(config.FieldSelector, s.where.FieldSelector)
	return config
}

// namespaceIn is the namespace to list, empty for all and for kinds that have none.
func (s *scope) namespaceIn(mapping *meta.RESTMapping) string {
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return metav1.NamespaceAll
	}
	return s.where.Namespace
}

// interval is CheckInterval, with jitter.
func (s *scope) interval() time.Duration {
	return wait.Jitter(s.cache.own.CheckInterval*9/10, 2./9)
}

// pause waits for a while, or until rights change, or hurry is sent to, which shortens it to a second.
func (s *scope) pause(ctx context.Context, d time.Duration, hurry <-chan struct{}) {
	if !s.again.IsZero() {
		d, s.again = min(d, max(time.Until(s.again), 0)), time.Time{}
	}
	over, aSecond := time.NewTimer(d), time.NewTimer(time.Second)
	defer over.Stop()
	defer aSecond.Stop()
	var hurried <-chan struct{}
	for changed := s.rightsChanged; ; {
		select {
		case <-ctx.Done():
			return
		case <-over.C:
			return
		case <-aSecond.C:
			hurried = hurry
		case <-hurried:
			return
		case <-changed:
			changed = nil // however many follow
			s.again = time.Now().Add(confirmAfter)
			over.Reset(soonAfterEvent())
		case <-s.idleness.C:
			s.stopIfIdle()
		}
	}
}

// soonAfterEvent spreads the questions of many scopes over a second.
func soonAfterEvent() time.Duration { return afterEvent + rand.N(time.Second) }

// stopIfIdle has the keeper stop if nobody has read the scope since it was last called, and nobody needs it else.
func (s *scope) stopIfIdle() {
	if !s.recent.Swap(false) {
		s.cache.dropIfIdle(s)
	}
}

// answered notes what the API server answers to an informer, and says whether that may pass, so that it is worth trying
// again. It is called by the informer.
func (s *scope) answered(by *informer, verb string, sent time.Time, err error) (passes bool) {
	switch {
	case err == nil:
		by.served()
		s.recover(by)
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		s.stumble(by, err)
		by.refused(err, sent)
		return true // as long as the keeper lets it try
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge), errors.Is(err, io.EOF):
		// It happens to every informer now and then, and says nothing.
	case verb == "watch" && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)):
		// An API server that does not stream lists. A list follows.
	default:
		s.stumble(by, err)
		return true
	}
	return false
}

// mapping finds out what the kind is called in URLs, and whether it has namespaces.
func (s *scope) mapping(ctx context.Context) (*meta.RESTMapping, error) {
	find := s.cache.mapping
	if s.distrusted && !s.cache.mapperForgets() {
		find = s.cache.discover
	}
	mapping, err := find(ctx, s.kind.gvk)
	if err == nil {
		s.kind.mapping.Store(mapping)
	}
	return mapping, err
}

func sameMapping(one, other *meta.RESTMapping) bool {
	return one.Resource == other.Resource && one.Scope.Name() == other.Scope.Name()
}

// retries are pauses that get longer, with jitter.
type retries struct{ first, most, last time.Duration }

func (r *retries) next() time.Duration {
	r.last = min(max(2*r.last, r.first), r.most)
	return wait.Jitter(r.last*9/10, 2./9)
}

func (r *retries) reset() { r.last = 0 }

// newTicker never ticks if d is 0.
func newTicker(d time.Duration) *time.Ticker {
	if d > 0 {
		return time.NewTicker(d)
	}
	ticker := time.NewTicker(time.Hour)
	ticker.Stop()
	return ticker
}
