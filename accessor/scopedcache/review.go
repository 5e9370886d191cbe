package scopedcache

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/semaphore"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
)

const (
	// reviewTimeout bounds a question to the API server.
	reviewTimeout = 10 * time.Second
	// reviewsAtOnce bounds the questions of one cache.
	reviewsAtOnce = 10
)

// verdict is what the API server says of a right.
type verdict int

const (
	allowed verdict = iota
	// denied: it said no. One no is not believed of what has worked.
	denied
	// unknown: it may not be asked. So the right has to be tried.
	unknown
	// unanswered: it failed, or did not answer.
	unanswered
)

// reviewer asks the API server what the identity may, outside of the identity's rate limit.
type reviewer struct {
	access     authorizationv1client.SelfSubjectAccessReviewInterface
	identities authenticationv1client.SelfSubjectReviewInterface
	readiness  rest.Interface
	turn       *semaphore.Weighted
	tells      atomic.Bool // the API server has told us once that it is ready
	asked      atomic.Bool // it was asked, and answered

	mu       sync.Mutex
	username string // guarded by mu; empty while it is not known
}

func newReviewer(config *rest.Config, httpClient *http.Client, username string) (*reviewer, error) {
	config = rest.CopyConfig(config)
	config.RateLimiter, config.QPS, config.Burst = nil, -1, 0
	config.NegotiatedSerializer = nil
	authorization, err := authorizationv1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, errors.Wrap(err, "making a client for access reviews")
	}
	authentication, err := authenticationv1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, errors.Wrap(err, "making a client for self reviews")
	}
	return &reviewer{access: authorization.SelfSubjectAccessReviews(), identities: authentication.SelfSubjectReviews(), readiness: authorization.RESTClient(),
		turn: semaphore.NewWeighted(reviewsAtOnce), username: username}, nil
}

// question is what an informer needs: verbs on a resource, as far as selectors go.
type question struct {
	mapping   *meta.RESTMapping
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

// may asks for all verbs at once. A no to one of them is a no, whatever became of the others; err says which, or why there
// is no answer, and is nil exactly if all are allowed.
func (r *reviewer) may(ctx context.Context, q question, verbs ...string) (verdict, error) {
	type answer struct {
		verdict verdict
		err     error
	}
	answers := make([]answer, len(verbs))
	var asking sync.WaitGroup
	if !r.asked.Load() {
		asking.Go(func() { _ = r.ready(ctx) }) // only to know whether it tells us
	}
	for i, verb := range verbs {
		asking.Go(func() { answers[i].verdict, answers[i].err = r.ask(ctx, q, verb) })
	}
	asking.Wait()
	worst := answer{}
	for _, wanted := range []verdict{unknown, unanswered, denied} {
		for _, a := range answers {
			if a.verdict == wanted && worst.verdict != wanted {
				worst = a
			}
		}
	}
	return worst.verdict, worst.err
}

// ask asks for one verb.
func (r *reviewer) ask(ctx context.Context, q question, verb string) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	if err := r.turn.Acquire(ctx, 1); err != nil {
		return unanswered, errors.Wrap(err, "asking for access: too many questions are unanswered")
	}
	review, err := r.access.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: q.attributes(verb)},
	}, metav1.CreateOptions{})
	r.turn.Release(1)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		if unready := r.ready(ctx); unready != nil {
			return unanswered, unready
		}
		return unknown, errors.Wrap(err, "asking for access")
	case err != nil:
		return unanswered, errors.Wrap(err, "asking for access")
	case review.Status.Allowed:
		return allowed, nil
	case review.Status.EvaluationError != "" && !review.Status.Denied:
		return unanswered, errors.Errorf("asking for access: the API server could not tell whether %s of %s is allowed: %s", verb, q.mapping.Resource.GroupResource(), review.Status.EvaluationError)
	default:
		if unready := r.ready(ctx); unready != nil {
			return unanswered, unready
		}
		return denied, r.forbidden(ctx, q, verb, review.Status.Reason)
	}
}

// ready returns an error if the API server says that it is not ready: until it is, it denies what is rightful, /readyz
// included, and does not know of all kinds, for its own informers have not synced. One that never told us that it is ready
// may not tell us at all; then nil says nothing.
func (r *reviewer) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	err := r.readiness.Get().AbsPath("/readyz").Do(ctx).Error()
	refused := apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
	if err == nil {
		r.tells.Store(true)
	}
	if err == nil || refused {
		r.asked.Store(true)
	}
	if err == nil || refused && !r.tells.Load() {
		return nil
	}
	return errors.Wrap(err, "the API server is not ready; what it denies says nothing")
}

// certainAfter is for how long a right must have been denied until it is believed lost.
func (r *reviewer) certainAfter() time.Duration {
	if r.tells.Load() {
		return confirmAfter
	}
	return confirmUnready
}

// forbidden is the error of a denied verb, in the words of the API server.
func (r *reviewer) forbidden(ctx context.Context, q question, verb, reason string) error {
	who := "this identity"
	if name := r.name(ctx); name != "" {
		who = fmt.Sprintf("User %q", name)
	}
	where := " at the cluster scope"
	if q.namespace != "" {
		where = fmt.Sprintf(" in the namespace %q", q.namespace)
	}
	if selected := (Scope{LabelSelector: q.labels, FieldSelector: q.fields}).String(); selected != "" {
		where += " with " + selected
	}
	if reason != "" {
		where += ": " + reason
	}
	resource := q.mapping.Resource
	return apierrors.NewForbidden(resource.GroupResource(), "", fmt.Errorf("%s cannot %s resource %q in API group %q%s", who, verb, resource.Resource, resource.Group, where))
}

// name is the identity as the API server states it, empty if it does not say.
func (r *reviewer) name(ctx context.Context) string {
	r.mu.Lock()
	name := r.username
	r.mu.Unlock()
	if name != "" {
		return name
	}
	review, err := r.identities.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.username = review.Status.UserInfo.Username
	return r.username
}

// attributes are what the API server's authorizer would be asked about a request of the informer.
func (q question) attributes(verb string) *authorizationv1.ResourceAttributes {
	attributes := &authorizationv1.ResourceAttributes{Namespace: q.namespace, Verb: verb,
		Group: q.mapping.Resource.Group, Version: q.mapping.Resource.Version, Resource: q.mapping.Resource.Resource}
	if q.fields != nil && !q.fields.Empty() {
		if name, exact := q.fields.RequiresExactMatch("metadata.name"); exact {
			attributes.Name = name // and so does the API server, for the sake of resourceNames
		}
		attributes.FieldSelector = &authorizationv1.FieldSelectorAttributes{Requirements: fieldRequirements(q.fields)}
	}
	if q.labels != nil && !q.labels.Empty() {
		attributes.LabelSelector = &authorizationv1.LabelSelectorAttributes{Requirements: labelRequirements(q.labels)}
	}
	return attributes
}

func fieldRequirements(selector fields.Selector) (made []metav1.FieldSelectorRequirement) {
	for _, r := range selector.Requirements() {
		operator := metav1.FieldSelectorOpIn
		if r.Operator == selection.NotEquals {
			operator = metav1.FieldSelectorOpNotIn
		}
		made = append(made, metav1.FieldSelectorRequirement{Key: r.Field, Operator: operator, Values: []string{r.Value}})
	}
	return made
}

func labelRequirements(selector labels.Selector) (made []metav1.LabelSelectorRequirement) {
	requirements, _ := selector.Requirements()
	for _, r := range requirements {
		requirement := metav1.LabelSelectorRequirement{Key: r.Key(), Values: r.Values().List()}
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			requirement.Operator = metav1.LabelSelectorOpIn
		case selection.NotEquals, selection.NotIn:
			requirement.Operator = metav1.LabelSelectorOpNotIn
		case selection.Exists:
			requirement.Operator = metav1.LabelSelectorOpExists
		case selection.DoesNotExist:
			requirement.Operator = metav1.LabelSelectorOpDoesNotExist
		default: // greater and less than have no word here, and selecting less than asked for asks for more
			continue
		}
		made = append(made, requirement)
	}
	return made
}
