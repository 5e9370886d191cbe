package connstate

import (
	"net/http"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ThrottledFor reports whether an error is the answer of an API server that refuses requests for
// now (429, or 503 with Retry-After), and after which time the server wants to be asked again; 0 if
// it does not say. The answer may be below other errors with a status of their own.
func ThrottledFor(err error) (retryAfter time.Duration, throttled bool) {
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		return 0, false
	}
	if details := status.ErrStatus.Details; details != nil {
		retryAfter = time.Duration(details.RetryAfterSeconds) * time.Second
	}
	switch status.ErrStatus.Code {
	case http.StatusTooManyRequests:
		return retryAfter, true
	case http.StatusServiceUnavailable:
		return retryAfter, retryAfter > 0
	}
	return 0, false
}
