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

// notePermission records what an answer says about the permission that its request needed.
func (c *Connection) notePermission(req *http.Request, resp *http.Response, now time.Time) {
	needed, ok := permissions.Of(req.Method, c.target.PathOf(req), req.URL.RawQuery)
	if !ok {
		return
	}
	var text []byte
	if resp.StatusCode == http.StatusForbidden && !needed.IsProxied() {
		text = peek(resp)
	}
	if c.record.NoteAnswer(needed, resp.StatusCode, text, now) && c.refused != nil {
		c.refused()
	}
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
