package rooms

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/term"
)

// errNoMember is why a request of a room is not sent.
var errNoMember = errors.New("no connection of the identity may send requests any more")

// carrier is the RoundTripper for what the members of a room send together: the lists, watches and
// reviews of their informers. It sends each request as one of the members, through that member's
// own RoundTripper. So the API server sees nothing that it would not see without the room, but for
// the extension that is named.
//
// When the member ends, so do its requests. The next member sends those that have no answer yet.
// Long answers that are being read, as those of lists and watches, end with term.ErrHandedOver.
type carrier struct {
	set  *Set
	room *Room
}

// RoundTrip implements http.RoundTripper.
func (c carrier) RoundTrip(req *http.Request) (*http.Response, error) {
	sent, failed := req, (*Membership)(nil)
	for {
		m := c.pick()
		if m == nil || m == failed {
			closeBody(sent)
			return nil, errNoMember
		}
		resp, err := m.member.RoundTrip(sent)
		if err == nil {
			err = read(resp)
		}
		switch {
		case err == nil:
			resp.Request = req
			resp.Body = &carriedBody{ReadCloser: resp.Body, member: m.member}
			return resp, nil
		case req.Context().Err() != nil:
			return nil, context.Cause(req.Context()) // err may be about the member's extension
		case m.member.Err() == nil:
			return nil, err
		}
		failed = m
		var ok bool
		if sent, ok = again(req); !ok { // the body has been read, or closed
			return nil, err
		}
	}
}

// short is the length of the longest answer that is read at once.
const short = 1 << 20

// read reads an answer that is short, so that it is not handed over.
func read(resp *http.Response) error {
	if resp.ContentLength < 0 || resp.ContentLength > short {
		return nil
	}
	content, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(content))
	return err
}

// pick returns the member that sends the room's requests now, nil if there is none: the one that
// has been there for longest. So it stays the same one as long as it may.
func (c carrier) pick() *Membership {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	for _, m := range c.room.members {
		if m.member.Err() == nil {
			return m
		}
	}
	return nil
}

// again returns a request that is sent once more, unless it may have changed something.
func again(req *http.Request) (repeated *http.Request, ok bool) {
	switch {
	case term.MayHaveChanged(req) && !connstate.IsReview(req.URL.Path):
		return nil, false
	case req.Body == nil:
		return req, true
	case req.GetBody == nil:
		return nil, false
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, false
	}
	repeated = new(*req)
	repeated.Body = body
	return repeated, true
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// carriedBody is the body of an answer that a member received.
type carriedBody struct {
	io.ReadCloser
	member Member
}

// Read has a small frame: thousands of watches wait here.
func (b *carriedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && b.member.Err() != nil {
		err = term.ErrHandedOver
	}
	return n, err
}
