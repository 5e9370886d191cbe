package scopedcache

import (
	"fmt"
	"net/http"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// ErrStopped is returned by everything that needs a cache which has stopped. If the context
	// that it was started with ended for another reason than having been cancelled, that reason is
	// returned instead.
	ErrStopped = errors.New("the cache has stopped")
	// ErrReleased is returned to those who wait for an informer that nobody needs any more: its
	// last holder released it, or it was removed.
	ErrReleased = errors.New("the informer was released; who needs it holds or reads it again")
)

// NotSyncedError is returned when a read or a wait ended before the informer had synced.
// apierrors.IsTimeout holds for it, and errors.Is finds the reason of the context.
type NotSyncedError struct {
	GVK   schema.GroupVersionKind
	Scope Scope
	State State     // what it was then: Syncing or Failing
	Since time.Time // of that state
	Last  error     // why it does not sync, nil if nothing is known
	Cause error     // why it was not waited for any longer
}

// Error implements error.
func (e *NotSyncedError) Error() string {
	scope := e.Scope.String()
	if scope != "" {
		scope = " (" + scope + ")"
	}
	last := "the API server has not answered yet"
	if e.Last != nil {
		last = e.Last.Error()
	}
	return fmt.Sprintf("the informer of %s%s has not synced, it is %s since %s: %s: %v", e.GVK.String(), scope, e.State,
		e.Since.Format(time.RFC3339), last, e.Cause)
}

// Unwrap lets errors.Is and errors.As find both reasons.
func (e *NotSyncedError) Unwrap() []error {
	if e.Last == nil {
		return []error{e.Cause}
	}
	return []error{e.Cause, e.Last}
}

// Status makes it a timeout for apierrors, as it is with controller-runtime's cache.
func (e *NotSyncedError) Status() metav1.Status {
	return metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGatewayTimeout,
		Reason: metav1.StatusReasonTimeout, Message: e.Error(),
		Details: &metav1.StatusDetails{Group: e.GVK.Group, Kind: e.GVK.Kind}}
}
