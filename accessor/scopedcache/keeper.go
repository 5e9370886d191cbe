package scopedcache

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/latchkey-dev/latchkey/internal/brief"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

const (
	// afterEvent is how long after an event about RBAC the API server is asked: its own informers hear of it in that time.
	// It is asked once more after confirmAfter, in case they did not.
	afterEvent = 250 * time.Millisecond
	// maxGap is how far apart questions get while events go on.
	maxGap = 30 * time.Second
)

// Pauses that get longer, with jitter: after an error, and while there is no such kind.
var (
	whileFailing = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: .1, Steps: 10, Cap: 30 * time.Second}
	whilePending = wait.Backoff{Duration: 2 * time.Second, Factor: 2, Jitter: .1, Steps: 10, Cap: 10 * time.Second}
)

// keep runs the scope until ctx is done: it finds the kind, asks for the right, and runs an informer until that is lost.
func (s *scope) keep(ctx context.Context) {
	failing, pending := whileFailing, whilePending
	s.idleness = newTicker(s.cache.own.IdleTimeout)
	defer s.idleness.Stop()
	denials := 0      // in a row, of reviews or of the informer
	var unsure doubts // about denials of an API server that is not ready
	var doubt State   // what the informer's own refusals said against what the API server says of right and kind
	for ctx.Err() == nil {
		mapping, err := s.mapping(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case meta.IsNoMatchError(err):
			doubt = ""
			s.become(NotServed, err)
			s.pause(ctx, pending.Step(), s.asked)
			continue
		case err != nil:
			s.fail(err)
			s.pause(ctx, failing.Step(), nil)
			continue
		}

		verdict, listOnly, err := s.rights(ctx, mapping)
		gone, _ := unsure.judge(verdict, time.Now())
		switch {
		case ctx.Err() != nil:
			return
		case verdict == denied, verdict == deniedUntold, gone:
			doubt = ""
			s.become(Forbidden, err)
			denials++
			s.pause(ctx, s.untilReview(denials), nil)
			continue
		case verdict == deniedUnready, verdict == unanswered:
			s.fail(err)
			s.pause(ctx, failing.Step(), nil)
			continue
		}

		if doubt == "" {
			s.become(Syncing, nil)
		}
		s.again = time.Time{}
		end := s.supervise(ctx, mapping, verdict, listOnly, doubt)
		if ctx.Err() != nil {
			return
		}
		if end.synced {
			denials = 0
			failing, pending = whileFailing, whilePending
		}
		doubt = end.doubt
		switch {
		case doubt == Forbidden:
			denials++
			s.pause(ctx, s.untilReview(denials), nil)
		case doubt != "":
			s.pause(ctx, pending.Step(), s.asked)
		case end.failed:
			s.pause(ctx, failing.Step(), nil)
		case !end.synced: // API servers behind one address may not agree about a kind
			s.pause(ctx, pending.Step(), s.asked)
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

// fail notes an error that says nothing about rights, and so changes nothing if more is known.
func (s *scope) fail(err error) {
	s.mu.Lock()
	known := s.state == Forbidden || s.state == NotServed
	s.mu.Unlock()
	if !known {
		s.become(Failing, err)
	}
}

// rights asks whether the informer may run. Without the right to watch it may list, if the author allows for that.
func (s *scope) rights(ctx context.Context, mapping *meta.RESTMapping) (v verdict, listOnly bool, err error) {
	q := s.question(mapping)
	v, err = s.cache.reviewer.may(ctx, q, "list", "watch")
	if v.isDenial() && s.cache.own.AllowListOnly {
		if v, err := s.cache.reviewer.may(ctx, q, "list"); !v.isDenial() {
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
	return s.namespace(s.configOf(mapping))
}

// namespace is the namespace to list of a kind that has some: that which was asked for, or which a selector requires.
func (s *scope) namespace(config cache.Config) string {
	if s.where.Namespace == metav1.NamespaceAll {
		namespace, _ := requiredNamespace(config.FieldSelector)
		return namespace
	}
	return s.where.Namespace
}

// interval is CheckInterval at most, with jitter.
func (s *scope) interval() time.Duration {
	return wait.Jitter(s.cache.own.CheckInterval*8/10, .25)
}

// pause waits for a while, or until rights change, or hurry is sent to, which shortens it to a second.
func (s *scope) pause(ctx context.Context, d time.Duration, hurry <-chan struct{}) {
	if !s.again.IsZero() {
		d, s.again = min(d, max(time.Until(s.again), 0)), time.Time{}
	}
	over, aSecond := newAlarm(d), time.NewTimer(time.Second)
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
			s.again = s.pace.event(over)
		case <-s.idleness.C:
			s.stopIfIdle()
		}
	}
}

// alarm is a timer that can be brought forward.
type alarm struct {
	*time.Timer
	due time.Time
}

func newAlarm(d time.Duration) *alarm { return &alarm{time.NewTimer(d), time.Now().Add(d)} }

func (a *alarm) in(d time.Duration) {
	a.due = time.Now().Add(d)
	a.Reset(d)
}

// within has it go off after d, unless it does so sooner.
func (a *alarm) within(d time.Duration) {
	if time.Now().Add(d).Before(a.due) {
		a.in(d)
	}
}

// pace says when to ask after an event about RBAC: soon, spread over a second for many scopes, but less and less often while
// events go on.
type pace struct {
	last time.Time // when was asked, or is to be
	gap  time.Duration
}

// event brings the next question forward, and returns when to ask once more.
func (p *pace) event(next *alarm) (again time.Time) {
	now := time.Now()
	delay, more := p.next(now, next.due)
	next.within(delay)
	return now.Add(more)
}

// next says after how long to ask, and after how long once more, if it is asked by due in any case.
func (p *pace) next(now, due time.Time) (delay, again time.Duration) {
	if now.Sub(p.last) > 2*maxGap {
		p.gap = 0
	}
	delay = min(max(afterEvent+rand.N(time.Second), p.last.Add(p.gap).Sub(now)), maxGap)
	again = max(confirmAfter, p.gap)
	p.last = now.Add(min(delay, max(due.Sub(now), 0)))
	p.gap = min(max(2*p.gap, time.Second), maxGap)
	return delay, again
}

// stopIfIdle has the keeper stop if nobody has read the scope since it was last called, and nobody needs it else.
func (s *scope) stopIfIdle() {
	if !s.recent.Swap(false) {
		s.cache.dropIfIdle(s)
	}
}

// answered notes what the API server answers to an informer, and says whether that may pass, so that it is worth trying
// again. It is called by the informer.
func (s *scope) answered(by *informer, what request, sent time.Time, err error) (passes bool) {
	switch err = s.cache.shown(err); {
	case err == nil:
		by.served()
		s.recover(by)
	case fromServer(err) && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)), meta.IsNoMatchError(err):
		s.stumble(by, err)
		by.refused(err, sent)
		return true // as long as the keeper lets it try
	case !what.fresh && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)), apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge), errors.Is(err, io.EOF):
		// It happens to every informer now and then, and says nothing.
	case what.lists && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)):
		// An API server that does not stream lists. A list follows.
	case what.verb == "watch" && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)):
		s.stumble(by, err) // a list follows here too, for what it names may be what is wrong
	default:
		s.stumble(by, err)
		return true
	}
	return false
}

// shown is an error of an informer as it is shown: short, and without the API server's words if they are not to be shown.
func (s *scoped) shown(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	var status apierrors.APIStatus
	if s.own.Discreet && fromServer(err) && errors.As(err, &status) {
		text = "the API server answered " + http.StatusText(int(status.Status().Code))
	}
	if short := brief.Shorten(text); short != err.Error() {
		return &shownError{shown: short, cause: err}
	}
	return err
}

// mapping finds out what the kind is called in URLs, and whether it has namespaces, unless that is known and not in doubt.
func (s *scope) mapping(ctx context.Context) (*meta.RESTMapping, error) {
	if known := s.kind.mapping.Load(); known != nil && !s.distrusted {
		return known, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, discoveryTimeout, errDiscovery)
	defer cancel()
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

// newTicker never ticks if d is 0.
func newTicker(d time.Duration) *time.Ticker {
	if d > 0 {
		return time.NewTicker(d)
	}
	ticker := time.NewTicker(time.Hour)
	ticker.Stop()
	return ticker
}
