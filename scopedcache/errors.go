package scopedcache

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

var (
	// ErrStopped is returned by all calls that need the cache after the cache has stopped. If the
	// context of Start ended with a cause other than cancellation, the calls return that cause
	// instead.
	ErrStopped = errors.New("the cache has stopped")
	// ErrReleased is returned to callers that use or wait for an informer that has ended: its last
	// holder released it, or RemoveInformer removed it.
	ErrReleased = errors.New("the informer was released; hold or read its scope again to start a new one")
)

// NotSyncedError is returned when a read or a wait ends before the informer has synced.
// apierrors.IsTimeout returns true for it, and errors.Is finds the cause of the context.
type NotSyncedError struct {
	// GVK and Scope are what the informer watches.
	GVK   schema.GroupVersionKind
	Scope Scope
	// State is that at the end of the wait: StateSyncing or StateFailing, or StateSynced if only
	// others may read what the informer has, because it may be older than what was written before.
	State State
	Since time.Time // when that state began
	Last  error     // why the informer does not sync, nil if unknown
	Cause error     // why the wait ended
}

// Error implements error.
func (e *NotSyncedError) Error() string {
	scope := e.Scope.String()
	if scope != "" {
		scope = " (" + scope + ")"
	}
	last := "the API server has not answered yet"
	if e.Last != nil {
		last = untrusted.Shorten(e.Last.Error())
	}
	if e.State == StateSynced {
		return fmt.Sprintf("the informer of %s%s is not read yet: %s: %v", e.GVK.String(), scope, last, e.Cause)
	}
	return fmt.Sprintf("the informer of %s%s has not synced, it is %s since %s: %s: %v", e.GVK.String(), scope, e.State,
		e.Since.Format(time.RFC3339), last, e.Cause)
}

// Unwrap lets errors.Is and errors.As find Cause and Last.
func (e *NotSyncedError) Unwrap() []error { return causesOf(e.Cause, e.Last) }

// Status makes the error a timeout for package apierrors, as with controller-runtime's cache.
func (e *NotSyncedError) Status() metav1.Status { return timeoutStatus(e.GVK, e) }

// PartialError says what a set of namespaces lacks. It is LastError of a set that is not Synced,
// unless one informer of all namespaces decides, and the error of a List that would be incomplete.
// errors.Is and package apierrors find the errors of the members, and NamespacesErr.
type PartialError struct {
	Members []ScopeState // those that are not Synced
	Of      int          // how many namespaces the set has
	// NamespacesErr is why it is not known now which namespaces are in the set; nil if it is.
	NamespacesErr error
	// LeftOut is how many namespaces with a RoleBinding of the identity are not tried because of
	// MaxNamespaces. The identity may or may not be allowed to list and watch there.
	LeftOut int
	// Kept is how many more namespaces there are whose objects handlers know from the time when the
	// identity could list and watch there. Handlers hear of these when it can again. List does not
	// fail because of them: the set does not have these namespaces.
	Kept int
}

// Error implements error.
func (e *PartialError) Error() string {
	count, reasons := map[State]int{}, []string{}
	for _, member := range e.Members {
		count[member.State]++
		if member.LastError != nil {
			reasons = append(reasons, member.Scope.Namespace+": "+member.LastError.Error())
		}
	}
	text := fmt.Sprintf("%d of %d namespaces synced", e.Of-len(e.Members), e.Of)
	for _, state := range slices.Sorted(maps.Keys(count)) {
		text += fmt.Sprintf(", %d %s", count[state], strings.ToLower(string(state)))
	}
	if e.LeftOut > 0 {
		text += fmt.Sprintf(", %d left out by MaxNamespaces", e.LeftOut)
	}
	if e.Kept > 0 {
		text += fmt.Sprintf(", what handlers know of %d more without permission is kept", e.Kept)
	}
	if more := len(reasons) - 3; more > 0 {
		reasons = append(reasons[:3], fmt.Sprintf("%d more", more))
	}
	parts := append([]string{text}, reasons...)
	if e.NamespacesErr != nil {
		parts = append([]string{"which namespaces are in the set is not known now: " + e.NamespacesErr.Error()}, parts...)
	}
	return untrusted.Shorten(strings.Join(parts, "; "))
}

// begins reports whether the error says only that members have not synced yet.
func (e *PartialError) begins() bool { return len(e.Unwrap()) == 0 && e.LeftOut == 0 && e.Kept == 0 }

// Unwrap lets errors.Is and errors.As find Unknown and the errors of the members.
func (e *PartialError) Unwrap() []error {
	var reasons []error
	if e.NamespacesErr != nil {
		reasons = append(reasons, e.NamespacesErr)
	}
	for _, member := range e.Members {
		if member.LastError != nil {
			reasons = append(reasons, member.LastError)
		}
	}
	return reasons
}

// BehindError is returned when a read ends before the informer that answers it has what the client
// itself wrote. apierrors.IsTimeout returns true for it, and errors.Is finds the cause of the
// context.
type BehindError struct {
	// GVK and Scope are what the informer watches.
	GVK   schema.GroupVersionKind
	Scope Scope
	// Key is of the object that was written.
	Key client.ObjectKey
	// Version is the resource version that the informer lacks; empty if it lacks a deletion.
	Version string
	Has     string // the resource version that the informer has
	Last    error  // why the informer's watch fails, nil if unknown
	Cause   error  // why the wait ended
}

// Error implements error.
func (e *BehindError) Error() string {
	key := strconv.Quote(untrusted.Shorten(e.Key.String()))
	scope, write := e.Scope.String(), "the client's deletion of "+key
	if scope != "" {
		scope = " (" + scope + ")"
	}
	if e.Version != "" {
		write = fmt.Sprintf("the client's write of %s, which has version %s", key, untrusted.Shorten(e.Version))
	}
	last := ""
	if e.Last != nil {
		last = untrusted.Shorten(e.Last.Error()) + ": "
	}
	return fmt.Sprintf("the informer of %s%s does not have %s, the informer has version %s: %s%v", e.GVK.String(), scope,
		write, untrusted.Shorten(e.Has), last, e.Cause)
}

// Unwrap lets errors.Is and errors.As find Cause and Last.
func (e *BehindError) Unwrap() []error { return causesOf(e.Cause, e.Last) }

// Status makes the error a timeout for package apierrors.
func (e *BehindError) Status() metav1.Status { return timeoutStatus(e.GVK, e) }

// causesOf returns why a wait ended and, if known, why it had not ended before.
func causesOf(cause, last error) []error {
	if last == nil {
		return []error{cause}
	}
	return []error{cause, last}
}

// timeoutStatus returns the status of an error that is a timeout for package apierrors.
func timeoutStatus(gvk schema.GroupVersionKind, err error) metav1.Status {
	return metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusGatewayTimeout,
		Reason:  metav1.StatusReasonTimeout,
		Message: err.Error(),
		Details: &metav1.StatusDetails{Group: gvk.Group, Kind: gvk.Kind},
	}
}
