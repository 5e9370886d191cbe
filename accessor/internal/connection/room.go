package connection

import (
	"cmp"
	"net/http"
	"time"

	"github.com/latchkey-dev/latchkey/accessor/internal/rooms"
)

// Join makes the connection share what proves its identity, and its cache, with those that are
// certainly of the same user. Call it once, before others get the connection; Leave ends that.
func (c *Connection) Join() {
	key, ok := rooms.KeyOf(c.target, &c.resolution, c.statedIdentity)
	if c.options.Rooms == nil || !ok {
		return
	}
	c.room = c.options.Rooms.Join(key, roomMember{c})
	c.evidence = c.room.Evidence()
}

// Leave ends what Join began.
func (c *Connection) Leave() {
	if c.room != nil {
		c.room.Leave()
	}
}

// Evidence returns what proves the identity. Call it after Join.
func (c *Connection) Evidence() *rooms.Evidence { return c.evidence }

// ReportIdentity reports to the connections that share the identity when the API server last stated
// it in answer to a review of this connection. verified is zero if the API server rejected it.
func (c *Connection) ReportIdentity(verified time.Time) {
	switch {
	case !verified.IsZero():
		c.evidence.Verified(verified)
	case c.room != nil:
		c.room.Doubt()
	}
}

// roomMember is a connection in its room.
type roomMember struct{ *Connection }

var _ rooms.Member = roomMember{}

// RoundTrip implements rooms.Member.
func (m roomMember) RoundTrip(req *http.Request) (*http.Response, error) {
	return m.streams.Transport.RoundTrip(req)
}

// Err implements rooms.Member. A connection whose extension is given up sends nothing any more.
func (m roomMember) Err() error { return cmp.Or(m.Connection.Err(), m.requests.Refused()) }

// Doubt implements rooms.Member: it is what a 401 to a request of the connection is.
func (m roomMember) Doubt() { m.observers.Unauthorized() }
