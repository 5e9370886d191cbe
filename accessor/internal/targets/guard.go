package targets

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/fence"
)

// guard keeps a TCP connection from sending what needs a term that has ended. A request compares the
// time when it begins, and again when it is answered. Between the two, net/http hands it from goroutine
// to goroutine, and a process that is suspended then, or that gets no CPU, would send it much later. So
// the connection looks once more before each write. Where a write must not be, the whole connection
// ends, with the requests of others on it: nobody can take back a part of it. That happens only to a
// process that was stopped in that moment.
//
// Its methods may be called from any goroutine, and on nil: a connection without a guard sends
// everything.
type guard struct {
	mu   sync.Mutex
	uses []*guardedUse // guarded by mu; of requests that need a term
	raw  net.Conn      // guarded by mu; the TCP connection itself, once it is there
	sent int64         // guarded by mu; bytes that the kernel has taken
}

// guardedUse is a request that needs a term and uses the connection.
type guardedUse struct {
	guard    *guard
	term     *fence.Term
	written  bool      // guarded by the guard's mu; the kernel has taken the whole request
	end      int64     // guarded by the guard's mu; if written, how much the kernel had taken then
	returned time.Time // guarded by the guard's mu; when RoundTrip returned, zero before
}

// lateWrite is how long net/http may still send parts of a request whose RoundTrip has returned.
const lateWrite = 10 * time.Second

// ackPatience is how long the other side may take to acknowledge what it has received.
const ackPatience = 100 * time.Millisecond

// begin notes a request that needs the term. The caller calls returned after RoundTrip.
func (g *guard) begin(term *fence.Term) *guardedUse {
	if g == nil || term == nil {
		return nil
	}
	u := &guardedUse{guard: g, term: term}
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

// wroteRequest notes that the whole request was sent.
func (u *guardedUse) wroteRequest() {
	if u == nil {
		return
	}
	u.guard.mu.Lock()
	defer u.guard.mu.Unlock()
	u.written, u.end = true, u.guard.sent
	u.guard.removeLocked(u)
}

// hasReturned notes that RoundTrip has returned. If the term has ended, and the request may still be on
// its way, the connection ends, so that the kernel does not send it again and again to a server that the
// network does not reach.
func (u *guardedUse) hasReturned() {
	if u == nil {
		return
	}
	g := u.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	u.returned = time.Now()
	switch {
	case u.term.Err() == nil:
	case !u.written:
		g.abortLocked()
	case !g.isDeliveredLocked(u):
		time.AfterFunc(ackPatience, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if !g.isDeliveredLocked(u) {
				g.abortLocked()
			}
		})
	}
}

// isDeliveredLocked reports whether the other side has acknowledged the whole request.
func (g *guard) isDeliveredLocked(u *guardedUse) bool {
	return g.sent-unacknowledged(g.raw) >= u.end
}

func (g *guard) removeLocked(u *guardedUse) {
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
func (g *guard) check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, u := range g.uses {
		if err := u.term.Err(); err != nil {
			g.abortLocked()
			return errors.Wrap(err, "a request was about to be sent")
		}
	}
	return nil
}

// abortLocked ends the TCP connection. What the kernel has not delivered yet is dropped.
func (g *guard) abortLocked() {
	if g.raw == nil {
		return
	}
	g.discardLocked()
	_ = g.raw.Close()
}

// discardLocked makes the end of the connection drop what the kernel has not delivered.
func (g *guard) discardLocked() {
	if tcp, ok := g.raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

// guardedConn is a TCP connection that looks before each write.
type guardedConn struct {
	net.Conn
	guard *guard
}

func (c *guardedConn) Write(p []byte) (int, error) {
	if err := c.guard.check(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	c.guard.mu.Lock()
	defer c.guard.mu.Unlock()
	c.guard.sent += int64(n)
	return n, err
}

// Close ends the connection. If it has carried a request whose term has ended, what the kernel still has
// of it is dropped: otherwise the kernel would send the rest.
func (c *guardedConn) Close() error {
	c.guard.mu.Lock()
	if slices.ContainsFunc(c.guard.uses, func(u *guardedUse) bool { return u.term.Err() != nil }) {
		c.guard.discardLocked()
	}
	c.guard.mu.Unlock()
	return c.Conn.Close()
}

type guardKey struct{}

// withGuard returns a context for the dial of a connection that the guard is for.
func withGuard(ctx context.Context, g *guard) context.Context {
	return context.WithValue(ctx, guardKey{}, g)
}

// guardOf returns the guard of the connection that is dialed with the context; a new one if none was
// given.
func guardOf(ctx context.Context) *guard {
	if g, ok := ctx.Value(guardKey{}).(*guard); ok {
		return g
	}
	return &guard{}
}

// dialedTCP notes the TCP connection of the guard in ctx.
func dialedTCP(ctx context.Context, raw net.Conn) {
	if g, ok := ctx.Value(guardKey{}).(*guard); ok {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.raw = raw
	}
}

// guardHTTP1 returns the request with a trace that guards the connection that net/http selects for it,
// and a function to call after RoundTrip. With HTTP/1.1 a connection carries one request at a time.
func guardHTTP1(req *http.Request) (guarded *http.Request, hasReturned func()) {
	term := fence.TermOf(req.Context())
	if term == nil {
		return req, func() {}
	}
	var mu sync.Mutex
	var use *guardedUse
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		conn := info.Conn
		if secure, ok := conn.(*tls.Conn); ok {
			conn = secure.NetConn()
		}
		if g, ok := conn.(*guardedConn); ok {
			mu.Lock()
			defer mu.Unlock()
			use = g.guard.begin(term) // of the last connection, if net/http tries several
		}
	}}
	return req.WithContext(httptrace.WithClientTrace(req.Context(), trace)), func() {
		mu.Lock()
		defer mu.Unlock()
		use.hasReturned()
		use.wroteRequest() // net/http closes the connection of a request that it has not sent
	}
}
