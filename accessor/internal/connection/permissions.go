package connection

import (
	"bytes"
	"io"
	"net/http"
	"time"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// SetRecord sets the record of the permissions that requests need, nil for none. refused is called
// when something was refused, and must not block. Call SetRecord once, before others get the
// connection.
func (c *Connection) SetRecord(record *permissions.Record, refused func()) {
	c.record, c.refused = record, refused
}

// notesPermissions reports whether answers with that status say something that is to be recorded.
func (c *Connection) notesPermissions(status int, now time.Time) bool {
	if c.record != nil || status == http.StatusForbidden {
		return true
	}
	refusals := c.refusals.Load()
	return refusals != nil && !refusals.IsEmpty(now)
}

// notePermission records what an answer says about the permission that its request needed.
func (c *Connection) notePermission(req *http.Request, resp *http.Response, now time.Time) {
	needed, ok := permissions.Of(req.Method, c.target.PathOf(req), req.URL.RawQuery)
	if !ok {
		return
	}
	refused := resp.StatusCode == http.StatusForbidden
	ofScope := refused && permissions.IsByInformer(req.Context()) // whose state says it
	if c.record == nil && ofScope {
		return
	}
	var text []byte
	if refused && !needed.IsProxied() {
		text = peek(resp)
	}
	if !ofScope {
		c.refusalsFor(resp.StatusCode).NoteAnswer(needed, resp.StatusCode, text, now)
	}
	if c.record.NoteAnswer(needed, resp.StatusCode, text, now) && c.refused != nil {
		c.refused()
	}
}

// refusalsFor returns where refusals are noted, nil before the first one.
func (c *Connection) refusalsFor(status int) *permissions.Refusals {
	if status == http.StatusForbidden && c.refusals.Load() == nil {
		c.refusals.CompareAndSwap(nil, new(permissions.Refusals))
	}
	return c.refusals.Load()
}

// RefusedLately returns what controllers' requests were refused lately, and not granted since.
func (c *Connection) RefusedLately(now time.Time) []permissions.Refused {
	return c.refusals.Load().Lately(now)
}

// peek returns the beginning of an answer, which stays as it is.
func peek(resp *http.Response) []byte {
	body := resp.Body
	read, err := io.ReadAll(io.LimitReader(body, permissions.MaxText))
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
