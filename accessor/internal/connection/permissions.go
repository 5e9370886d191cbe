package connection

import (
	"bytes"
	"io"
	"net/http"
	"time"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// notePermission records what an answer says about the permission that its request needed.
func (c *Connection) notePermission(req *http.Request, resp *http.Response) {
	needed, ok := permissions.Of(req.Method, c.target.PathOf(req), req.URL.RawQuery)
	if !ok {
		return
	}
	var text []byte
	if resp.StatusCode == http.StatusForbidden && !needed.IsProxied() {
		text = peek(resp)
	}
	c.record.NoteAnswer(needed, resp.StatusCode, text, time.Now())
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
