package untrusted

import (
	"net/http"
	"strings"
	"unicode"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// shownError is an error in other words than its cause's.
type shownError struct {
	shown string
	cause error
}

func (e *shownError) Error() string { return e.shown }
func (e *shownError) Unwrap() error { return e.cause }

// Show returns an error that reads as text, cut after 1 KiB, and has cause in its chain.
func Show(text string, cause error) error {
	return &shownError{shown: Shorten(text), cause: cause}
}

// StatusText returns what may be shown of a server's answer if the server's own words may not: the
// text of its status. ok is false if err is no answer with a status.
func StatusText(err error) (text string, ok bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return "", false
	}
	return http.StatusText(int(status.Status().Code)), true
}

// maxName is how long a name may be that a server states.
const maxName = 1024

// IsPresentable reports whether a name that a server states may be shown: it is short, and has no
// control characters.
func IsPresentable(name string) bool {
	return len(name) <= maxName && !strings.ContainsFunc(name, unicode.IsControl)
}
