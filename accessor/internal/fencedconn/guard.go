package fencedconn

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/term"
)

// Guard keeps a TCP connection from sending a request whose term has ended. A request compares the
// time when it begins, and again when its answer arrives. Between the two, net/http hands the
// request from goroutine to goroutine. A process that is suspended then, or that gets no CPU, would
// send the request much later. So the connection compares the time once more before each write. If
// a write is refused, the whole connection ends, with the requests of other identities on it,
// because a part of a connection cannot be taken back. Only a process that was stopped in that
// moment loses a connection.
//
// The methods may be called from any goroutine. Begin may be called on nil: a connection without a
// guard sends everything.
type Guard struct {
	mu   sync.Mutex
	uses []*Use       // guarded by mu; of requests that need a term and are not written
	raw  *net.TCPConn // guarded by mu; the TCP connection itself, once it is there
	sent int64        // guarded by mu; bytes that the kernel has taken
	owed int64        // guarded by mu; up to which byte there are requests that need a term
}

// Use is a request that needs a term and uses the connection.
type Use struct {
	guard    *Guard
	term     *term.Term
	written  bool      // guarded by the guard's mu; the kernel has taken the whole request
	upTo     int64     // guarded by the guard's mu; up to which byte of the connection the request is, once written
	returned time.Time // guarded by the guard's mu; when RoundTrip returned, zero before
}

// lateWrite is how long net/http may still send parts of a request whose RoundTrip has returned.
const lateWrite = 10 * time.Second

// ackTimeout is how long the other side may take to acknowledge what it has received.
const ackTimeout = 100 * time.Millisecond

// Begin notes a request that needs the term. The caller calls HasReturned after RoundTrip.
func (g *Guard) Begin(needed *term.Term) *Use {
	if g == nil || needed == nil {
		return nil
	}
	u := &Use{guard: g, term: needed}
	g.mu.Lock()
	defer g.mu.Unlock()
	kept := g.uses[:0]
	for _, other := range g.uses {
		if other.returned.IsZero() || time.Since(other.returned) < lateWrite || other.term.Err() != nil {
			kept = append(kept, other)
		}
	}
	clear(g.uses[len(kept):])
	g.uses = append(kept, u)
	return u
}

// WroteRequest notes that the kernel has taken the whole request.
func (u *Use) WroteRequest() {
	if u == nil {
		return
	}
	g := u.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	u.written, u.upTo, g.owed = true, g.sent, g.sent
	g.removeLocked(u)
}

// HasReturned notes that RoundTrip has returned. If the term has ended, and the request may still
// be on its way, the connection ends, so that the kernel does not send it again and again to a
// server that the network does not reach.
func (u *Use) HasReturned() {
	if u == nil {
		return
	}
	g := u.guard
	g.mu.Lock()
	u.returned = time.Now()
	written, delivered, raw := u.written, g.isDeliveredLocked(u.upTo), g.raw
	g.mu.Unlock()
	switch {
	case u.term.Err() == nil:
	case !written:
		abort(raw)
	case !delivered:
		time.AfterFunc(ackTimeout, u.abortUnlessDelivered)
	}
}

// abortUnlessDelivered ends the connection if the other side has still not acknowledged the
// request. Requests of others that were written later do not count.
func (u *Use) abortUnlessDelivered() {
	g := u.guard
	g.mu.Lock()
	delivered, raw := g.isDeliveredLocked(u.upTo), g.raw
	g.mu.Unlock()
	if !delivered {
		abort(raw)
	}
}

// isDeliveredLocked reports whether the other side has acknowledged the connection's bytes up to
// upTo.
func (g *Guard) isDeliveredLocked(upTo int64) bool {
	return upTo == 0 || g.sent-unacknowledged(g.raw) >= upTo
}

func (g *Guard) removeLocked(u *Use) {
	for i, other := range g.uses {
		if other == u {
			last := len(g.uses) - 1
			g.uses[i], g.uses[last] = g.uses[last], nil
			g.uses = g.uses[:last]
			return
		}
	}
}

// check returns an error if the connection must not write: what is written may be part of a request
// whose term has ended.
func (g *Guard) check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, u := range g.uses {
		if err := u.term.Err(); err != nil {
			return errors.Wrap(err, "a request was about to be sent")
		}
	}
	return nil
}

// isUsed reports whether a request that needs a term is not yet written.
func (g *Guard) isUsed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.uses) > 0
}

// abort ends a TCP connection. What the kernel has not delivered yet is dropped. abort waits for a
// write under way, which looks at the guard: do not call it with the guard's mu.
func abort(conn *net.TCPConn) {
	if conn != nil {
		_ = conn.SetLinger(0)
		_ = conn.Close()
	}
}

// guardedConn is a TCP connection that looks before each write. The guard has the same connection.
type guardedConn struct {
	*net.TCPConn
	guard *Guard
}

func (c *guardedConn) Write(p []byte) (n int, err error) {
	if c.guard.isUsed() {
		n, err = writeChecked(c.TCPConn, p, c.guard.check)
	} else {
		n, err = c.TCPConn.Write(p)
	}
	c.guard.mu.Lock()
	c.guard.sent += int64(n)
	c.guard.mu.Unlock()
	if errors.Is(err, fence.ErrClosed) {
		abort(c.TCPConn)
	}
	return n, err
}

// ReadFrom hides that of net.TCPConn, which would write without a look.
func (c *guardedConn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c}, r)
}

// Close ends the connection. If a request that needs a term is not written, or not acknowledged,
// what the kernel has of it is dropped: otherwise the kernel would go on to send it, and another
// replica may lead.
func (c *guardedConn) Close() error {
	c.guard.mu.Lock()
	drops := len(c.guard.uses) > 0 || !c.guard.isDeliveredLocked(c.guard.owed)
	c.guard.mu.Unlock()
	if drops {
		_ = c.SetLinger(0)
	}
	return c.TCPConn.Close()
}

// markedConn is a connection whose guard can be found.
type markedConn struct {
	net.Conn
	guard *Guard
}

// Mark returns the connection as net/http is to see it, so that GuardHTTP1 finds the guard.
func Mark(conn net.Conn, guard *Guard) net.Conn { return &markedConn{Conn: conn, guard: guard} }

type guardKey struct{}

// WithGuard returns a context for the dial of a connection, and the guard of the connection: that
// of ctx, or else a new one.
func WithGuard(ctx context.Context) (context.Context, *Guard) {
	if g, ok := ctx.Value(guardKey{}).(*Guard); ok {
		return ctx, g
	}
	g := &Guard{}
	return context.WithValue(ctx, guardKey{}, g), g
}

// Wrap returns a TCP connection that was dialed with ctx, with the guard in it. Other connections
// have none.
func Wrap(ctx context.Context, conn net.Conn) net.Conn {
	g, hasGuard := ctx.Value(guardKey{}).(*Guard)
	tcp, isTCP := conn.(*net.TCPConn)
	if !hasGuard || !isTCP {
		return conn
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.raw = tcp
	return &guardedConn{TCPConn: tcp, guard: g}
}

// GuardHTTP1 returns the request with a trace that guards the connection that net/http selects for
// it, and a function to call after RoundTrip. With HTTP/1.1 a connection carries one request at a
// time.
func GuardHTTP1(req *http.Request) (traced *http.Request, hasReturned func()) {
	needed := term.Of(req.Context())
	if needed == nil {
		return req, func() {}
	}
	var mu sync.Mutex
	var use *Use
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		conn := info.Conn
		if secure, ok := conn.(*tls.Conn); ok {
			conn = secure.NetConn()
		}
		if marked, ok := conn.(*markedConn); ok {
			mu.Lock()
			defer mu.Unlock()
			use = marked.guard.Begin(needed) // of the last connection, if net/http tries several
		}
	}}
	return req.WithContext(httptrace.WithClientTrace(req.Context(), trace)), func() {
		mu.Lock()
		defer mu.Unlock()
		use.HasReturned()
		use.WroteRequest() // net/http closes the connection of a request that it has not sent
	}
}
