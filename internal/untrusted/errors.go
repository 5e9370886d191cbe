package untrusted

import (
	"net/http"
	"strings"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// shownError is an error with another text than its cause.
type shownError struct {
	shown string
	cause error
}

func (e *shownError) Error() string { return e.shown }
func (e *shownError) Unwrap() error { return e.cause }

// Show returns an error with that text, cut after 1 KiB, and with cause in its chain.
func Show(text string, cause error) error {
	return &shownError{shown: Shorten(text), cause: cause}
}

// StatusText returns the standard text for the HTTP status of a server's answer, for use where the
// server's own text must not appear. ok is false if err is no answer with a status.
func StatusText(err error) (text string, ok bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return "", false
	}
	return http.StatusText(int(status.Status().Code)), true
}

// maxName is the maximum length in bytes of a name that a server reports.
const maxName = 1024

// IsPresentable reports whether a name from a server may be shown: the name has at most 1 KiB, and
// neither control nor format characters. Names are compared, so they are refused rather than
// changed.
func IsPresentable(name string) bool {
	return len(name) <= maxName && !strings.ContainsFunc(name, func(r rune) bool { return !isShown(r) })
}
