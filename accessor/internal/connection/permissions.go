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

// denial matches what an API server's authorizer says, in any encoding, and admitted what admission
// says: what the request needs was permitted. Another answer with that status is no API server's.
var (
	denial   = regexp.MustCompile(` cannot ([a-z]+) (?:resource|path) `)
	admitted = []byte(" is forbidden: ")
)

// notePermission records which permission a request needed, and whether the API server refused it.
// An answer that says nothing about that is not recorded.
func (c *Connection) notePermission(req *http.Request, resp *http.Response) {
	needed, ok := permissions.Of(req.Method, c.target.PathOf(req), req.URL.RawQuery)
	if !ok {
		return
	}
	switch status := resp.StatusCode; {
	case status == http.StatusForbidden:
		text := peek(resp)
		// An apply that creates needs two permissions, and the answer has the one that is missing.
		if denied := denial.FindSubmatch(text); denied != nil {
			needed.Verb = string(denied[1])
			c.record.Note(needed, true, time.Now())
			return
		}
		if !bytes.Contains(text, admitted) {
			return
		}
	case status == http.StatusUnauthorized, status == http.StatusTooManyRequests, status >= http.StatusInternalServerError,
		status >= http.StatusMultipleChoices && status < http.StatusBadRequest:
		return
	}
	now := time.Now()
	c.record.Note(needed, false, now)
	if needed.Verb == "patch" && resp.StatusCode == http.StatusCreated {
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
