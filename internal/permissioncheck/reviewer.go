package permissioncheck

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/latchkey-dev/latchkey/internal/permissions"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

const (
	// atOnce is how many reviews of one identity are under way.
	atOnce = 10
	// remembered is how long an answer counts, and maxRemembered how many are kept.
	remembered    = 5 * time.Second
	maxRemembered = 1000
)

// Review sends a SelfSubjectAccessReview.
type Review func(ctx context.Context, spec authorizationv1.SelfSubjectAccessReviewSpec) (
	authorizationv1.SubjectAccessReviewStatus, error)

// verdict is an API server's answer.
type verdict int

const (
	denied verdict = iota
	allowed
	undecided // the API server could not evaluate it
)

// question is a permission that is asked about, once.
type question struct {
	permissions.Permission
	objects []int // that need it
	answered
}

// answered is an answer, and when it came.
type answered struct {
	verdict verdict
	reason  string
	at      time.Time
}

// questions are different ones, in order.
type questions struct {
	all   []*question
	known map[permissions.Permission]*question
}

// add asks for a permission, for an object.
func (q *questions) add(p permissions.Permission, object int) *question {
	one := q.known[p]
	if one == nil {
		if q.known == nil {
			q.known = map[permissions.Permission]*question{}
		}
		one = &question{Permission: p}
		q.known[p], q.all = one, append(q.all, one)
	}
	one.objects = append(one.objects, object)
	return one
}

// reviewer asks an API server, and remembers answers for some seconds.
type reviewer struct {
	review Review

	mu      sync.Mutex
	answers map[permissions.Permission]answered // guarded by mu
}

// forget forgets all answers.
func (r *reviewer) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = nil
}

// ask answers all questions.
func (r *reviewer) ask(ctx context.Context, q *questions) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, one := range q.all {
		group.Go(func() (err error) {
			one.answered, err = r.one(ctx, one.Permission)
			return err
		})
	}
	return group.Wait()
}

// one answers a question, from memory if it was asked some seconds ago.
func (r *reviewer) one(ctx context.Context, p permissions.Permission) (answered, error) {
	return r.since(ctx, p, time.Now().Add(-remembered+1))
}

// since answers a question, from memory if it was asked since then.
func (r *reviewer) since(ctx context.Context, p permissions.Permission, since time.Time) (answered, error) {
	now := time.Now()
	r.mu.Lock()
	known, found := r.answers[p]
	r.mu.Unlock()
	if found && !known.at.Before(since) {
		return known, nil
	}
	spec := authorizationv1.SelfSubjectAccessReviewSpec{}
	if p.Path != "" {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: p.Path, Verb: p.Verb}
	} else {
		spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Verb:        p.Verb,
			Group:       p.Group,
			Resource:    p.Resource,
			Subresource: p.Subresource,
			Namespace:   p.Namespace,
			Name:        p.Name,
		}
	}
	status, err := r.review(ctx, spec)
	if err != nil {
		return answered{}, errors.WithMessage(err, "reviewing access")
	}
	answer := answered{reason: untrusted.Shorten(status.Reason), at: now}
	switch {
	case status.Allowed:
		answer.verdict = allowed
	case status.EvaluationError != "" && !status.Denied:
		answer.verdict, answer.reason = undecided, untrusted.Shorten(status.EvaluationError)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.answers) >= maxRemembered {
		r.answers = nil // they are soon too old
	}
	if r.answers == nil {
		r.answers = map[permissions.Permission]answered{}
	}
	if later := r.answers[p]; !later.at.After(now) {
		r.answers[p] = answer
	}
	return answer, nil
}
