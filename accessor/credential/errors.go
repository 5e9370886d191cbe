package credential

import "github.com/pkg/errors"

// errClosed is what requests get that come after the credential was given up.
var errClosed = errors.Wrap(ErrInvalidCredential, "the credential was closed")

// joined is cause, recognised by errors.Is as kind too.
type joined struct{ kind, cause error }

func (j *joined) Error() string   { return j.kind.Error() + ": " + j.cause.Error() }
func (j *joined) Unwrap() []error { return []error{j.kind, j.cause} }
