package monitor

import (
	"errors"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Request is what an informer asked the API server for.
type Request struct {
	Verb  string
	Fresh bool // it names no resourceVersion, nor a page by which there is one, so it cannot be too old
	Lists bool // it is a watch that begins with what there is, which not every API server can do
}

// Outcome is what became of a request.
type Outcome int

const (
	// OutcomeServed: the API server served it.
	OutcomeServed Outcome = iota
	// OutcomeIgnored: it happens to every informer now and then, and says nothing.
	OutcomeIgnored
	// OutcomeFailed: it failed.
	OutcomeFailed
	// OutcomeRefused: access, or the kind, may be gone.
	OutcomeRefused
)

// Classify returns what became of an informer's request, and whether the informer is to send it
// again, as long as it runs. fromServer says whether err is the API server's answer, and not that
// of something on the way to it: a credential that could not be had has an API server's status,
// too.
func Classify(r Request, err error, fromServer bool) (outcome Outcome, retry bool) {
	switch {
	case err == nil:
		return OutcomeServed, false
	case fromServer && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)), meta.IsNoMatchError(err):
		return OutcomeRefused, true
	case !r.Fresh && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)),
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge), errors.Is(err, io.EOF):
		return OutcomeIgnored, false
	case r.Lists && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)):
		return OutcomeIgnored, false // an API server that does not stream lists; a list follows
	case r.Verb == "watch" && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)):
		return OutcomeFailed, false // a list follows here, too, for what it names may be what is wrong
	default:
		return OutcomeFailed, true
	}
}
