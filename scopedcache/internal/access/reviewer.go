package access

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync"
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
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

const (
	// reviewTimeout bounds one review.
	reviewTimeout = 10 * time.Second
	// reviewsAtOnce bounds the concurrent access reviews of one cache.
	reviewsAtOnce = 10
)

// Reviewer asks the API server which access the identity has, outside of the identity's rate limit.
type Reviewer struct {
	authorization  rest.Interface
	authentication rest.Interface
	slots          *semaphore.Weighted
	hideText       bool // errors do not contain the API server's text

	mu       sync.Mutex
	username string // guarded by mu; empty while it is not known
}

// NewReviewer returns a reviewer for the identity of httpClient. username may be empty: then the
// API server is asked for it when an error needs it.
func NewReviewer(config *rest.Config, httpClient *http.Client, username string, hideText bool) (*Reviewer, error) {
	limited := *httpClient
	if limited.Transport == nil {
		limited.Transport = http.DefaultTransport
	}
	limited.Transport = untrusted.Limit(limited.Transport)
	httpClient = &limited
	config = rest.CopyConfig(config)
	config.RateLimiter, config.QPS, config.Burst = nil, -1, 0
	config.NegotiatedSerializer = nil
	authorization, err := authorizationv1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client for access reviews")
	}
	authentication, err := authenticationv1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client for self reviews")
	}
	return &Reviewer{
		authorization:  authorization.RESTClient(),
		authentication: authentication.RESTClient(),
		slots:          semaphore.NewWeighted(reviewsAtOnce),
		username:       username,
		hideText:       hideText,
	}, nil
}

// Question identifies the objects that an informer needs access to: a resource, restricted by
// namespace and selectors.
type Question struct {
	Mapping   *meta.RESTMapping
	Namespace string // in the path; empty for all, and for cluster-scoped kinds
	Labels    labels.Selector
	Fields    fields.Selector // as the informer sends them
	Name      string          // of the object, for a get; empty for all
	Selection string          // the selectors, for errors; empty if there are none
	Hint      bool            // errors say how to read where the identity may
}

// Review reviews all verbs at once. If one verb is denied, the verdict is a denial, whatever the
// answers to the others are. err names the denied verb, or why there is no answer. err is nil only
// if all verbs are allowed.
func (r *Reviewer) Review(ctx context.Context, q Question, verbs ...string) (monitor.Verdict, error) {
	type answer struct {
		verdict monitor.Verdict
		err     error
	}
	answers := make([]answer, len(verbs))
	var wg sync.WaitGroup
	for i, verb := range verbs {
		wg.Go(func() { answers[i].verdict, answers[i].err = r.ask(ctx, q, verb) })
	}
	wg.Wait()
	worst := answer{}
	for _, verdict := range []monitor.Verdict{monitor.Unaskable, monitor.Unanswered, monitor.DeniedUnready,
		monitor.DeniedReadinessUnknown, monitor.Denied} {
		for _, a := range answers {
			if a.verdict == verdict && worst.verdict != verdict {
				worst = a
			}
		}
	}
	return worst.verdict, worst.err
}

// ask reviews one verb.
func (r *Reviewer) ask(ctx context.Context, q Question, verb string) (monitor.Verdict, error) {
	bounded, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	if err := r.slots.Acquire(bounded, 1); err != nil {
		return monitor.Unanswered, errors.Wrap(err, "reviewing access: too many reviews are unanswered")
	}
	review := &authorizationv1.SelfSubjectAccessReview{}
	// without client-go's own retries, which would wait for a server that is overloaded while they
	// hold the slot
	err := r.authorization.Post().Resource("selfsubjectaccessreviews").Body(&authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: q.Attributes(verb)},
	}).MaxRetries(0).Do(bounded).Into(review)
	r.slots.Release(1)
	switch {
	case FromServer(err) &&
		(apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)):
		if r.Ready(ctx) == monitor.DeniedUnready {
			return monitor.Unanswered, r.failed(err)
		}
		return monitor.Unaskable, r.failed(err)
	case err != nil:
		return monitor.Unanswered, r.failed(err)
	case review.Status.Allowed:
		return monitor.Allowed, nil
	case review.Status.EvaluationError != "" && !review.Status.Denied:
		return monitor.Unanswered,
			r.failed(errors.Errorf("the API server could not evaluate whether %s of %s is allowed%s", verb,
				q.Mapping.Resource.GroupResource(), r.serverText(review.Status.EvaluationError)))
	default:
		return r.Ready(ctx), r.forbidden(ctx, q, verb, review.Status.Reason)
	}
}

// FromServer reports whether an error is the answer of the API server, and not of something before
// the request. A credential that cannot be obtained has an API server's status too.
func FromServer(err error) bool {
	var local *url.Error
	return err != nil && !errors.As(err, &local)
}

// failed returns the error for a review without an answer.
func (r *Reviewer) failed(err error) error {
	if status, ok := untrusted.StatusText(err); ok && r.hideText && FromServer(err) {
		return errors.New("reviewing access: " + status) // without the server's status, which has its text
	}
	return untrusted.Show("reviewing access: "+err.Error(), err)
}

// serverText returns the API server's message as a suffix, or nothing if errors do not contain its
// text.
func (r *Reviewer) serverText(message string) string {
	if message == "" || r.hideText {
		return ""
	}
	return ": " + untrusted.Shorten(message)
}

// Ready returns the verdict for a denial, which depends on whether the API server is ready. Until
// then an API server denies legitimate requests and does not know all kinds, because its own
// informers have not synced. In its first moments it does not report whether it is ready either.
func (r *Reviewer) Ready(ctx context.Context) monitor.Verdict {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	err := r.authorization.Get().AbsPath("/readyz").MaxRetries(0).Do(ctx).Error()
	switch {
	case err == nil:
		return monitor.Denied
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err), apierrors.IsNotFound(err),
		apierrors.IsMethodNotSupported(err):
		return monitor.DeniedReadinessUnknown
	default:
		return monitor.DeniedUnready
	}
}

// forbidden returns the error for a denied verb, in the form that the API server uses.
func (r *Reviewer) forbidden(ctx context.Context, q Question, verb, reason string) error {
	identity := "this identity"
	if name := r.name(ctx); name != "" {
		identity = fmt.Sprintf("User %q", name)
	}
	suffix := " at the cluster scope"
	if q.Namespace != "" {
		suffix = fmt.Sprintf(" in the namespace %q", q.Namespace)
	}
	if q.Selection != "" {
		suffix += " with " + q.Selection
	}
	suffix += r.serverText(reason)
	if q.Hint && q.Namespace == "" && q.Mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		suffix += "; if it may in some namespaces, read and watch there: see scopedcache.WhereverAllowed"
	}
	resource := q.Mapping.Resource
	return untrusted.Error(apierrors.NewForbidden(resource.GroupResource(), "",
		fmt.Errorf("%s cannot %s resource %q in API group %q%s", identity, verb, resource.Resource, resource.Group, suffix)))
}

// name returns the username, which it asks the API server for if necessary. The name is empty if
// the API server does not report it.
func (r *Reviewer) name(ctx context.Context) string {
	r.mu.Lock()
	name := r.username
	r.mu.Unlock()
	if name == "" {
		name, _ = r.Identity(ctx)
	}
	return name
}

// Identity asks the API server for the username and groups of the identity. The username is empty
// if the API server does not report it.
func (r *Reviewer) Identity(ctx context.Context) (username string, groups []string) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	review := &authenticationv1.SelfSubjectReview{}
	if err := r.authentication.Post().Resource("selfsubjectreviews").Body(&authenticationv1.SelfSubjectReview{}).
		MaxRetries(0).Do(ctx).Into(review); err != nil {
		return "", nil
	}
	user := review.Status.UserInfo
	if !untrusted.IsPresentable(user.Username) {
		return "", nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.username = user.Username
	return user.Username, user.Groups
}

// Attributes returns what the API server would ask its authorizer about a request of the informer.
func (q Question) Attributes(verb string) *authorizationv1.ResourceAttributes {
	attributes := &authorizationv1.ResourceAttributes{
		Namespace: q.Namespace,
		Verb:      verb,
		Group:     q.Mapping.Resource.Group,
		Version:   q.Mapping.Resource.Version,
		Resource:  q.Mapping.Resource.Resource,
		Name:      q.Name,
	}
	if selector := q.Fields; selector != nil && !selector.Empty() {
		if name, exact := selector.RequiresExactMatch(metav1.ObjectNameField); exact {
			attributes.Name = name // as the API server does, for resourceNames
		}
		attributes.FieldSelector = &authorizationv1.FieldSelectorAttributes{RawSelector: selector.String()}
	}
	if q.Labels != nil && !q.Labels.Empty() {
		attributes.LabelSelector = &authorizationv1.LabelSelectorAttributes{RawSelector: q.Labels.String()}
	}
	return attributes
}
