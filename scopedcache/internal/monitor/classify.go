package monitor

import (
	"errors"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Request is a request of an informer to the API server.
type Request struct {
	Verb  string
	Fresh bool // without a resourceVersion or a page of one, so it cannot expire
	Lists bool // a watch that begins with a list; not every API server supports that
}

// Outcome is the result of a request.
type Outcome int

const (
	// OutcomeServed means that the API server served the request.
	OutcomeServed Outcome = iota
	// OutcomeIgnored means an error that happens to every informer now and then, and has no meaning
	// for the scope.
	OutcomeIgnored
	// OutcomeFailed means that the request failed.
	OutcomeFailed
	// OutcomeRefused means that access may be revoked, or the kind removed.
	OutcomeRefused
)

// Classify returns the outcome of an informer's request, and whether the informer must retry the
// request while the informer runs. fromServer says whether err is the answer of the API server, and
// not of something before the request. A credential that cannot be obtained has an API server's
// status, too.
func Classify(r Request, err error, fromServer bool) (outcome Outcome, retry bool) {
	switch {
	case err == nil:
		return OutcomeServed, false
	case fromServer && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)), meta.IsNoMatchError(err):
		return OutcomeRefused, true
	case !r.Fresh && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)),
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge),
		r.Verb != "watch" && errors.Is(err, io.EOF):
		return OutcomeIgnored, false
	case r.Lists && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)):
		return OutcomeIgnored, false // the API server does not stream lists; a list follows
	case r.Verb == "watch" && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)):
		return OutcomeFailed, false // a list follows here, too: the resourceVersion may be the problem
	default:
		return OutcomeFailed, true
	}
}
