package targets

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
)

const (
	dialTimeout  = 10 * time.Second // handshake included
	maxDials     = 3                // at the same time
	dialPatience = time.Second      // before another dial is tried beside one that hangs
)

// h2Pool hands out room for requests on HTTP/2 connections. It dials only when there is no room on
// the connections that it has, and then one at a time, unless that hangs. net/http dials for every
// request that finds no room: fifty requests at once open fifty connections, of which the first
// would have carried a hundred. A request that waits takes whatever comes first: a dial that ends,
// room on an old connection, or the end of its own context.
//
// The pool's mu comes before the locks of connections: a connection's state hook takes no lock.
type h2Pool struct {
	life    context.Context // of the target
	address string
	dial    func(context.Context) (*http.ClientConn, error)
	waiting atomic.Int64 // requests that may need room; for the state hook, which takes no lock

	mu      sync.Mutex
	conns   []*h2Conn   // guarded by mu; earlier ones are filled first, so that later ones fall idle and close
	waiters []*h2Waiter // guarded by mu; in order
	dials   []time.Time // guarded by mu; when those under way began
	timer   *time.Timer // guarded by mu; serves again, while there are waiters
}

// h2Conn is a connection. One request at a time has room reserved on it: the next one gets room
// when the headers of the one before are on their way. Else net/http may count a request that waits
// for its turn twice, or not at all, if others are cancelled meanwhile, and all requests on the
// connection wait for each other (golang/go#70809 is of that kind). A fresh connection takes a
// single request until the first answer, or dialPatience, has shown that the server's settings have
// arrived, for net/http sends nothing if more is reserved than they allow.
type h2Conn struct {
	*http.ClientConn
	sending atomic.Bool // a request has room reserved and has not sent its headers

	// Guarded by the pool's mu.
	since   time.Time // of the reservation
	settled bool
	taken   int // requests while it is not settled
}

// h2Waiter is a request that waits for room.
type h2Waiter struct {
	done chan struct{} // closed when conn or err is set
	conn *h2Conn
	err  error
}

func newH2Pool(life context.Context, address string, dial func(context.Context) (*http.ClientConn, error)) *h2Pool {
	p := &h2Pool{life: life, address: address, dial: dial}
	context.AfterFunc(life, p.serve) // so that nothing waits on
	return p
}

// acquire returns a connection with room reserved for one request: call RoundTrip on it, sent, and
// finished.
func (p *h2Pool) acquire(ctx context.Context) (*h2Conn, error) {
	p.waiting.Add(1) // first, so that the state hook does not miss this request
	defer p.waiting.Add(-1)
	p.mu.Lock()
	if len(p.waiters) == 0 {
		if conn := p.reserveLocked(); conn != nil {
			p.mu.Unlock()
			return conn, nil
		}
	}
	w := &h2Waiter{done: make(chan struct{})}
	p.waiters = append(p.waiters, w)
	p.dialLocked()
	p.mu.Unlock()
	select {
	case <-w.done:
		return w.conn, w.err
	case <-ctx.Done():
		p.giveUp(w)
		return nil, errors.Wrapf(context.Cause(ctx), "waiting for a connection to %s", p.address)
	}
}

// giveUp ends a waiter. What it was given meanwhile is for others.
func (p *h2Pool) giveUp(w *h2Waiter) {
	p.mu.Lock()
	p.waiters = slices.DeleteFunc(p.waiters, func(other *h2Waiter) bool { return other == w })
	conn := w.conn
	if conn != nil && !conn.settled {
		conn.taken--
	}
	p.mu.Unlock()
	if conn != nil {
		conn.Release()
		conn.sending.Store(false)
	}
	p.serve()
}

// sent notes that the headers of the request that conn was acquired for are on their way, or never
// will be. It takes no lock, because net/http's are held.
func (p *h2Pool) sent(conn *h2Conn) {
	conn.sending.Store(false)
	if p.waiting.Load() > 0 {
		go p.serve()
	}
}

// finished notes that a request ended, with an answer or without. It reports whether the connection
// had answered before.
func (p *h2Pool) finished(conn *h2Conn, answered bool) (answeredBefore bool) {
	p.mu.Lock()
	before := conn.settled
	switch {
	case before:
	case answered:
		conn.settled = true
	default:
		conn.taken--
	}
	more := !before && len(p.waiters) > 0
	p.mu.Unlock()
	if more {
		p.serve()
	}
	return before
}

// settle lets a connection take as many requests as it says, although none was answered.
func (p *h2Pool) settle(conn *h2Conn) {
	p.mu.Lock()
	conn.settled = true
	p.mu.Unlock()
	p.serve()
}

// changed is the state hook of connections: room may have come free, or a connection has ended.
// net/http may call it with its locks held, from any goroutine, so it takes no lock and does not
// block.
func (p *h2Pool) changed(conn *http.ClientConn) {
	if p.waiting.Load() > 0 || conn.Err() != nil {
		go p.serve()
	}
}

// serve gives room to those that wait for it, and dials for the rest.
func (p *h2Pool) serve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = slices.DeleteFunc(p.conns, func(conn *h2Conn) bool { return conn.Err() != nil })
	for len(p.waiters) > 0 {
		conn := p.reserveLocked()
		if conn == nil {
			break
		}
		p.waiters[0].conn = conn
		close(p.waiters[0].done)
		p.waiters = p.waiters[1:]
	}
	p.dialLocked()
}

// reserveLocked takes room on the oldest connection that has some, nil if there is none.
// Connections that will never have any again are forgotten: those that have ended, and those
// without requests that still refuse one.
func (p *h2Pool) reserveLocked() (found *h2Conn) {
	p.conns = slices.DeleteFunc(p.conns, func(conn *h2Conn) bool {
		if found != nil || conn.sending.Load() || !conn.settled && conn.taken > 0 {
			return false
		}
		if conn.Reserve() == nil {
			conn.sending.Store(true)
			conn.since = time.Now()
			conn.taken++
			found = conn
			return false
		}
		useless := conn.Err() != nil || conn.InFlight() == 0
		if useless {
			go func() { _ = conn.Close() }() // it may take a while
		}
		return useless
	})
	return found
}

// dialLocked dials if requests wait, and nothing under way will give them room soon.
func (p *h2Pool) dialLocked() {
	if len(p.waiters) == 0 {
		if p.timer != nil {
			p.timer.Stop()
		}
		return
	}
	// For a dial that hangs, and because a state hook may miss a change while it runs.
	if p.timer == nil {
		p.timer = time.AfterFunc(dialPatience, p.serve)
	} else {
		p.timer.Reset(dialPatience)
	}
	if slices.ContainsFunc(p.conns, (*h2Conn).isPromising) {
		return
	}
	if n := len(p.dials); n == maxDials || n > 0 && time.Since(p.dials[n-1]) < dialPatience {
		return
	}
	begun := time.Now()
	p.dials = append(p.dials, begun)
	go p.run(begun)
}

// isPromising reports whether the connection may have more room in a moment: when its first answer,
// or the headers of a request, show that it works. It does not if those headers do not leave,
// because the server reads nothing.
func (c *h2Conn) isPromising() bool {
	return !c.settled || c.sending.Load() && time.Since(c.since) < dialPatience
}

// run dials. The dial belongs to no single request, for others may wait; it ends with the target.
func (p *h2Pool) run(begun time.Time) {
	ctx, cancel := context.WithTimeout(p.life, dialTimeout)
	defer cancel()
	dialed, err := p.dial(ctx)
	var conn *h2Conn
	if err == nil {
		conn = &h2Conn{ClientConn: dialed}
		dialed.SetStateHook(p.changed) // without mu: it calls the hook
	}
	p.mu.Lock()
	p.dials = slices.Delete(p.dials, slices.Index(p.dials, begun), slices.Index(p.dials, begun)+1)
	switch {
	case err == nil:
		p.conns = append(p.conns, conn)
		time.AfterFunc(dialPatience, func() { p.settle(conn) })
	case len(p.dials) == 0:
		for _, w := range p.waiters {
			w.err = err
			close(w.done)
		}
		p.waiters = nil
	}
	p.mu.Unlock()
	p.serve()
}
