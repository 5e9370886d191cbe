package accessor

import (
	"net/http"
	"strings"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// discreetError is the error of a request whose answer is not to be shown: whoever chose the server may be after what others
// may not read there.
type discreetError struct {
	shown string
	cause error
}

func (e *discreetError) Error() string { return e.shown }
func (e *discreetError) Unwrap() error { return e.cause }

// discreet shows no more than the status of an answer. What failed without one is shown as it is.
func discreet(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	code := int(status.Status().Code)
	return &discreetError{shown: strings.TrimSpace("asking the API server who we are: it answered " + http.StatusText(code)), cause: err}
}
