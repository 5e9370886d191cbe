package connection

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// maxDenial is how much is read of an answer that denies something.
const maxDenial = 2048

// denial matches what an API server's authorizer says, in any encoding, and admission what
// admission says: what the request needs was permitted. Another answer with that status is no API
// server's, or not known well enough.
var (
	denial    = regexp.MustCompile(`User \\?"[^"]*" cannot (\S+) (?:resource|path) `)
	admission = regexp.MustCompile(` is forbidden: |admission webhook \\?"`)
)

// notePermission records which permission a request needed, and whether the API server refused it.
// An answer that says nothing about that is not recorded.
func (c *Connection) notePermission(req *http.Request, resp *http.Response) {
	needed, ok := permissions.Of(req.Method, c.target.PathOf(req), req.URL.RawQuery)
	if !ok {
		return
	}
	if needed.Subresource == "proxy" || needed.Verb == "proxy" { // the answer may be the backend's
		if resp.StatusCode < http.StatusMultipleChoices {
			c.record.Note(needed, false, time.Now())
		}
		return
	}
	switch status := resp.StatusCode; {
	case status == http.StatusForbidden:
		text := peek(resp)
		// An apply that creates needs two permissions, and the answer has the one that is missing.
		if denied := denial.FindSubmatch(text); denied != nil {
			now := time.Now()
			if verb := string(denied[1]); verb != needed.Verb {
				if verb == "create" { // the authorizer permitted the verb of the request before
					c.record.Note(needed, false, now)
				}
				needed.Verb = verb // which the record may not know: of an impersonation
			}
			c.record.Note(needed, true, now)
			return
		}
		if len(text) == maxDenial || !admission.Match(text) {
			return
		}
	case status == http.StatusUnauthorized, status == http.StatusTooManyRequests, status >= http.StatusInternalServerError,
		status >= http.StatusMultipleChoices && status < http.StatusBadRequest:
		return
	}
	now := time.Now()
	c.record.Note(needed, false, now)
	if (needed.Verb == "patch" || needed.Verb == "update") && needed.Subresource == "" &&
		resp.StatusCode == http.StatusCreated {
		needed.Verb = "create"
		c.record.Note(needed, false, now)
	}
}

// peek returns the beginning of an answer, which stays as it is.
func peek(resp *http.Response) []byte {
	body := resp.Body
	read, err := io.ReadAll(io.LimitReader(body, maxDenial))
	rest := io.Reader(body)
	if err != nil {
		rest = failingReader{err}
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), rest), body}
	return read
}

// failingReader returns an error that a read of the body returned before.
type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }
