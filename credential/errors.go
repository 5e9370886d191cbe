package credential

import (
	"fmt"
	"net/http"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// Errors that functions in the options may return or wrap, to choose the Reason of an extension
// without a connection. The text of such an error is shown to users.
var (
	// ErrInvalidReference (reason InvalidReference): the extension names no ServiceAccount, Secret
	// or Target, or none that can exist.
	ErrInvalidReference = errors.New("invalid reference")
	// ErrInvalidCredential (reason InvalidCredential): the provided token, certificate, kubeconfig
	// or config cannot be used as a credential.
	ErrInvalidCredential = errors.New("invalid credential")
	// ErrNotAllowed (reason NotAllowed): the extension may not use the ServiceAccount or Secret
	// that it names.
	ErrNotAllowed = errors.New("not allowed")
	// ErrPending (reason NotStarted): the extension names no ServiceAccount, Secret or Target yet. An
	// update of the extension connects it. ErrPending of a connected extension ends the connection,
	// as every other error does.
	ErrPending = identity.ErrPending
)

// errClosed is the error of requests after Close of their credential.
var errClosed = errors.Wrap(ErrInvalidCredential, "the credential was closed")

// NoTokenError is the error of a request for which the ServiceAccount has no valid token, although
// the connection still exists. The request was not sent. Return the error, and let your queue
// retry: TokenRequests are retried automatically. If they continue to fail, the connection ends
// with the reason. Several callers may share one value: do not change it.
type NoTokenError struct {
	// ServiceAccount is the ServiceAccount without a valid token.
	ServiceAccount types.NamespacedName
	// Expired is the time at which the last token expired, zero if there is no last token.
	Expired time.Time
	// Err is the reason why there is no newer token.
	Err error
}

// Error implements error. The text never contains a secret.
func (e *NoTokenError) Error() string {
	if e.Expired.IsZero() {
		return fmt.Sprintf("serviceaccount %s has no valid token: %s", e.ServiceAccount, untrusted.Shorten(e.Err.Error()))
	}
	return fmt.Sprintf("serviceaccount %s has no valid token (the last token expired at %s): %s", e.ServiceAccount,
		e.Expired.UTC().Format(time.RFC3339), untrusted.Shorten(e.Err.Error()))
}

// Status makes the error a 503 for package apierrors. Err may have the status of a TokenRequest,
// which says nothing about the object that the caller wants.
func (e *NoTokenError) Status() metav1.Status {
	return metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusServiceUnavailable,
		Reason:  metav1.StatusReasonServiceUnavailable,
		Message: e.Error(),
	}
}

// Unwrap returns the cause.
func (e *NoTokenError) Unwrap() error { return e.Err }

// classifiedError wraps cause. errors.Is reports true for kind as well as for cause.
type classifiedError struct{ kind, cause error }

func (j *classifiedError) Error() string   { return j.kind.Error() + ": " + j.cause.Error() }
func (j *classifiedError) Unwrap() []error { return []error{j.kind, j.cause} }

// operatorForbidden returns an ErrOperatorForbidden that names the missing permission (lacks), and
// how to grant it and nothing else.
func operatorForbidden(cause error, lacks, grant string) error {
	return errors.Wrapf(&classifiedError{kind: identity.ErrOperatorForbidden, cause: cause},
		"the host operator needs %s (%s)",
		lacks, grant)
}

// invalid returns an ErrInvalidCredential with the reason what, and with cause if cause is not nil.
func invalid(cause error, what string) error {
	if cause == nil {
		return errors.Wrap(ErrInvalidCredential, what)
	}
	return errors.Wrap(&classifiedError{kind: ErrInvalidCredential, cause: cause}, what)
}
