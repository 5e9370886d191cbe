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
	// ErrServiceAccountNotFound: the ServiceAccount does not exist, or no longer with the UID that was seen.
	ErrServiceAccountNotFound = errors.New("ServiceAccount not found")
	// ErrTokenRequestFailed: the API server answered, but gave no token.
	ErrTokenRequestFailed = errors.New("token request failed")
	// ErrInvalidCredential: what was provided cannot be used as a credential.
	ErrInvalidCredential = errors.New("invalid credential")
	// ErrNotRead: what holds the credential was not read yet; there will be another Resolve.
	ErrNotRead = errors.New("not read yet")
)

// errClosed is what requests get that come after the credential was given up.
var errClosed = errors.Wrap(ErrInvalidCredential, "the credential was closed")

// NoTokenError is the error of a request for which there is no valid token of its ServiceAccount. The request was not
// sent. Values are shared: do not change them.
type NoTokenError struct {
	ServiceAccount types.NamespacedName
	Expired        time.Time // the end of the last token, zero if there was none
	Cause          error     // why there is no other
}

// Error implements error. It never holds a secret.
func (e *NoTokenError) Error() string {
	if e.Expired.IsZero() {
		return fmt.Sprintf("no token of serviceaccount %s: %s", e.ServiceAccount, e.Cause)
	}
	return fmt.Sprintf("no token of serviceaccount %s but one until %s: %s", e.ServiceAccount, e.Expired.UTC().Format(time.RFC3339), e.Cause)
}

// Unwrap returns the cause.
func (e *NoTokenError) Unwrap() error { return e.Cause }

// joined is cause, recognised by errors.Is as kind too.
type joined struct{ kind, cause error }

func (j *joined) Error() string   { return j.kind.Error() + ": " + j.cause.Error() }
func (j *joined) Unwrap() []error { return []error{j.kind, j.cause} }

// invalid is ErrInvalidCredential with its reason, and its cause if there is one.
func invalid(cause error, what string) error {
	if cause == nil {
		return errors.Wrap(ErrInvalidCredential, what)
	}
	return errors.Wrap(&joined{kind: ErrInvalidCredential, cause: cause}, what)
}
