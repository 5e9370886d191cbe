package credential

import (
	"fmt"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
)

// Errors that say why an extension has no credential, for errors.Is.
var (
	// ErrInvalidReference: the extension names no ServiceAccount or Secret, or none that can exist.
	ErrInvalidReference = errors.New("invalid reference")
	// ErrServiceAccountNotFound: the ServiceAccount does not exist, or no longer with the UID that
	// was seen.
	ErrServiceAccountNotFound = errors.New("ServiceAccount not found")
	// ErrTokenRequestFailed: the API server answered, but gave no token.
	ErrTokenRequestFailed = errors.New("token request failed")
	// ErrInvalidCredential: what was provided cannot be used as a credential.
	ErrInvalidCredential = errors.New("invalid credential")
	// ErrNotAllowed: the extension may not use what it names.
	ErrNotAllowed = errors.New("not allowed")
	// ErrOperatorForbidden: the host operator may not read what it takes to find out.
	ErrOperatorForbidden = errors.New("the host operator may not")
	// ErrPending: what holds the credential was not read yet; there will be another Resolve.
	ErrPending = errors.New("not read yet")
)

// errClosed is what requests get that come after the credential was given up.
var errClosed = errors.Wrap(ErrInvalidCredential, "the credential was closed")

// NoTokenError is the error of a request for which there is no valid token of its ServiceAccount,
// although its connection lives. The request was not sent. Return the error and let your queue try
// again: TokenRequests are tried again by themselves, and if they go on failing the connection ends
// with the reason. Values are shared: do not change them.
type NoTokenError struct {
	// ServiceAccount whose token is missing.
	ServiceAccount types.NamespacedName
	// Expired is the end of the last token, zero if none is held.
	Expired time.Time
	// Cause is why there is no other.
	Cause error
}

// Error implements error. It never holds a secret.
func (e *NoTokenError) Error() string {
	if e.Expired.IsZero() {
		return fmt.Sprintf("serviceaccount %s has no valid token: %s", e.ServiceAccount, e.Cause)
	}
	return fmt.Sprintf("serviceaccount %s has no valid token (the last ended at %s): %s", e.ServiceAccount,
		e.Expired.UTC().Format(time.RFC3339), e.Cause)
}

// Unwrap returns the cause.
func (e *NoTokenError) Unwrap() error { return e.Cause }

// joined is cause, recognised by errors.Is as kind too.
type joined struct{ kind, cause error }

func (j *joined) Error() string   { return j.kind.Error() + ": " + j.cause.Error() }
func (j *joined) Unwrap() []error { return []error{j.kind, j.cause} }

// operatorForbidden is ErrOperatorForbidden, with what the host operator lacks and where it is
// granted.
func operatorForbidden(cause error, lacks, role string) error {
	return errors.Wrapf(&joined{kind: ErrOperatorForbidden, cause: cause}, "the host operator needs %s (%s)", lacks, role)
}

// invalid is ErrInvalidCredential with its reason, and its cause if there is one.
func invalid(cause error, what string) error {
	if cause == nil {
		return errors.Wrap(ErrInvalidCredential, what)
	}
	return errors.Wrap(&joined{kind: ErrInvalidCredential, cause: cause}, what)
}
