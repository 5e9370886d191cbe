package identity

import "github.com/pkg/errors"

// Reasons why an extension has no credential, for errors.Is. Package credential has those that
// users may return.
var (
	// ErrServiceAccountNotFound: the ServiceAccount does not exist, or has another UID than before.
	ErrServiceAccountNotFound = errors.New("ServiceAccount not found")
	// ErrTokenRequestFailed: the API server responded, but issued no token.
	ErrTokenRequestFailed = errors.New("token request failed")
	// ErrOperatorForbidden: the host operator lacks a permission that it needs to read the
	// credential or its ServiceAccount.
	ErrOperatorForbidden = errors.New("the host operator lacks a permission")
	// ErrPending: the Secret with the credential is not read yet, or not named yet. Another Resolve
	// follows.
	ErrPending = errors.New("pending")
)
