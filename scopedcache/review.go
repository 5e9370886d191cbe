package scopedcache

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
	// reviewTimeout bounds a question to the API server.
	reviewTimeout = 10 * time.Second
	// reviewsAtOnce bounds the questions of one cache.
	reviewsAtOnce = 10
)

// reviewer asks the API server what the identity may, outside of the identity's rate limit.
type reviewer struct {
	access     authorizationv1client.SelfSubjectAccessReviewInterface
	identities authenticationv1client.SelfSubjectReviewInterface
	readiness  rest.Interface
	turn       *semaphore.Weighted
	discreet   bool // the API server's words are not shown

	mu       sync.Mutex
	username string // guarded by mu; empty while it is not known
}

func newReviewer(config *rest.Config, httpClient *http.Client, username string, discreet bool) (*reviewer, error) {
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
		return nil, errors.Wrap(err, "making a client for access reviews")
	}
	authentication, err := authenticationv1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, errors.Wrap(err, "making a client for self reviews")
	}
	return &reviewer{access: authorization.SelfSubjectAccessReviews(), identities: authentication.SelfSubjectReviews(),
		readiness: authorization.RESTClient(),
		turn:      semaphore.NewWeighted(reviewsAtOnce), username: username, discreet: discreet}, nil
}

// question is what an informer needs: verbs on a resource, as far as selectors go.
type question struct {
	mapping   *meta.RESTMapping
	namespace string // of the path; empty for all, and for kinds that have none
	labels    labels.Selector
	fields    fields.Selector
}

// may asks for all verbs at once. A no to one of them is a no, whatever became of the others; err
// says which, or why there is no answer, and is nil exactly if all are allowed.
func (r *reviewer) may(ctx context.Context, q question, verbs ...string) (monitor.Verdict, error) {
	type answer struct {
		verdict monitor.Verdict
		err     error
	}
	answers := make([]answer, len(verbs))
	var asking sync.WaitGroup
	for i, verb := range verbs {
		asking.Go(func() { answers[i].verdict, answers[i].err = r.ask(ctx, q, verb) })
	}
	asking.Wait()
	worst := answer{}
	for _, wanted := range []monitor.Verdict{monitor.Unaskable, monitor.Unanswered, monitor.DeniedUnready,
		monitor.DeniedReadinessUnknown, monitor.Denied} {
		for _, a := range answers {
			if a.verdict == wanted && worst.verdict != wanted {
				worst = a
			}
		}
	}
	return worst.verdict, worst.err
}

// ask asks for one verb.
func (r *reviewer) ask(ctx context.Context, q question, verb string) (monitor.Verdict, error) {
	bounded, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	if err := r.turn.Acquire(bounded, 1); err != nil {
		return monitor.Unanswered, errors.Wrap(err, "asking for access: too many questions are unanswered")
	}
	review, err := r.access.Create(bounded, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: q.attributes(verb)},
	}, metav1.CreateOptions{})
	r.turn.Release(1)
	switch {
	case fromServer(err) &&
		(apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)):
		if r.ready(ctx) == monitor.DeniedUnready {
			return monitor.Unanswered, r.failed(err)
		}
		return monitor.Unaskable, r.failed(err)
	case err != nil:
		return monitor.Unanswered, r.failed(err)
	case review.Status.Allowed:
		return monitor.Allowed, nil
	case review.Status.EvaluationError != "" && !review.Status.Denied:
		return monitor.Unanswered,
			r.failed(errors.Errorf("the API server could not tell whether %s of %s is allowed%s", verb,
				q.mapping.Resource.GroupResource(), r.words(review.Status.EvaluationError)))
	default:
		return r.ready(ctx), r.forbidden(ctx, q, verb, review.Status.Reason)
	}
}

// fromServer reports whether an error is a server's answer, and not that of something on the way to
// it: a credential that could not be had has an API server's status too.
func fromServer(err error) bool {
	var local *url.Error
	return err != nil && !errors.As(err, &local)
}

// failed is the error of a question that was not answered.
func (r *reviewer) failed(err error) error {
	text := err.Error()
	if status, ok := untrusted.StatusText(err); ok && r.discreet && fromServer(err) {
		text = status
	}
	return untrusted.Show("asking for access: "+text, err)
}

// words are what the API server says, to be put behind something; nothing if its words are not
// shown.
func (r *reviewer) words(said string) string {
	if said == "" || r.discreet {
		return ""
	}
	return ": " + untrusted.Shorten(said)
}

// ready tells what a denial is worth. Until an API server is ready it denies what is rightful, and
// does not know of all kinds, for its own informers have not synced; in its first moments it does
// not tell whether it is ready either.
func (r *reviewer) ready(ctx context.Context) monitor.Verdict {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	err := r.readiness.Get().AbsPath("/readyz").Do(ctx).Error()
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

// forbidden is the error of a denied verb, in the words of the API server.
func (r *reviewer) forbidden(ctx context.Context, q question, verb, reason string) error {
	who := "this identity"
	if name := r.name(ctx); name != "" {
		who = fmt.Sprintf("User %q", name)
	}
	suffix := " at the cluster scope"
	if q.namespace != "" {
		suffix = fmt.Sprintf(" in the namespace %q", q.namespace)
	}
	if selected := (Scope{LabelSelector: q.labels, FieldSelector: q.fields}).String(); selected != "" {
		suffix += " with " + selected
	}
	suffix += r.words(reason)
	resource := q.mapping.Resource
	return apierrors.NewForbidden(resource.GroupResource(), "",
		fmt.Errorf("%s cannot %s resource %q in API group %q%s", who, verb, resource.Resource, resource.Group, suffix))
}

// name is the identity as the API server states it, empty if it does not say.
func (r *reviewer) name(ctx context.Context) string {
	r.mu.Lock()
	name := r.username
	r.mu.Unlock()
	if name == "" {
		name, _ = r.identity(ctx)
	}
	return name
}

// identity asks the API server who we are. The username is empty if it does not say.
func (r *reviewer) identity(ctx context.Context) (username string, groups []string) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	review, err := r.identities.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.username = review.Status.UserInfo.Username
	return r.username, review.Status.UserInfo.Groups
}

// attributes are what the API server's authorizer would be asked about a request of the informer.
func (q question) attributes(verb string) *authorizationv1.ResourceAttributes {
	attributes := &authorizationv1.ResourceAttributes{Namespace: q.namespace, Verb: verb,
		Group: q.mapping.Resource.Group, Version: q.mapping.Resource.Version, Resource: q.mapping.Resource.Resource}
	if selector := inNamespace(q.namespace, q.fields); selector != nil && !selector.Empty() {
		if name, exact := selector.RequiresExactMatch("metadata.name"); exact {
			attributes.Name = name // and so does the API server, for the sake of resourceNames
		}
		attributes.FieldSelector = &authorizationv1.FieldSelectorAttributes{RawSelector: selector.String()}
	}
	if q.labels != nil && !q.labels.Empty() {
		attributes.LabelSelector = &authorizationv1.LabelSelectorAttributes{RawSelector: q.labels.String()}
	}
	return attributes
}

// inNamespace is the field selector that is sent: controller-runtime turns that of the namespace
// into the path, so that a Role suffices, and sends it too.
func inNamespace(namespace string, selector fields.Selector) fields.Selector {
	if namespace == "" {
		return selector
	}
	if exact, found := requiredNamespace(selector); found && exact == namespace {
		return selector
	}
	return andFields(fields.OneTermEqualSelector("metadata.namespace", namespace), selector)
}

// requiredNamespace is the namespace that a selector restricts a kind to.
func requiredNamespace(selector fields.Selector) (namespace string, found bool) {
	if selector == nil || selector.Empty() {
		return "", false
	}
	return selector.RequiresExactMatch("metadata.namespace")
}
