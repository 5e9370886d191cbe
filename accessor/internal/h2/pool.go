package h2

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/accessor/internal/fencedconn"
)

const (
	dialTimeout   = 10 * time.Second // including the handshake
	maxDials      = 3                // dials at the same time
	fallbackDelay = time.Second      // time after which another dial starts in addition to one that hangs
)

// pool reserves room for requests on HTTP/2 connections. It dials only if its connections have no
// room, and then one dial at a time, unless a dial hangs. net/http's own transport would dial for
// every request that finds no room: fifty requests at once would open fifty connections, although
// the first could carry a hundred. A request waits for the first of these events: a dial that ends,
// room on an old connection, or the end of its own context.
//
// The pool's mu is locked before the locks of connections: a connection's state hook takes no lock.
type pool struct {
	life    context.Context // ends with the transport
	address string
	dial    func(context.Context) (*http.ClientConn, error)
	waiting atomic.Int64 // requests that may need room; for the state hook, which takes no lock

	mu      sync.Mutex
	conns   []*clientConn // guarded by mu; earlier ones are filled first, so that later ones become idle and close
	waiters []*waiter     // guarded by mu; in order
	dials   []time.Time   // guarded by mu; start times of the dials under way
	timer   *time.Timer   // guarded by mu; calls serve again while there are waiters
}

// clientConn is a connection. One request at a time has room reserved on the connection. The next
// request gets room when the headers of the previous request are being sent. Otherwise net/http may
// count a waiting request twice, or not at all, if other requests are cancelled meanwhile. Then all
// requests on the connection wait for each other (golang/go#70809 is of that kind). A new
// connection carries a single request until its first answer, or fallbackDelay, shows that the
// server's settings have arrived. The reason is that net/http sends nothing if more room is
// reserved than the settings allow.
type clientConn struct {
	*http.ClientConn
	guard   *fencedconn.Guard
	sending atomic.Bool // a request has reserved room and has not sent its headers

	// Guarded by the pool's mu.
	reservedAt        time.Time // time of the last reservation
	settled           bool
	unsettledRequests int // requests while the connection is not settled
}

// waiter is a request that waits for room.
type waiter struct {
	done chan struct{} // closed when conn or err is set
	conn *clientConn
	err  error
}

func newPool(life context.Context, address string, dial func(context.Context) (*http.ClientConn, error)) *pool {
	p := &pool{life: life, address: address, dial: dial}
	context.AfterFunc(life, p.serve) // so that no request waits for longer
	return p
}

// acquire returns a connection with room reserved for one request. The caller must call RoundTrip
// on the connection, then sent and finished.
func (p *pool) acquire(ctx context.Context) (*clientConn, error) {
	p.waiting.Add(1) // first, so that the state hook does not miss this request
	defer p.waiting.Add(-1)
	p.mu.Lock()
	if len(p.waiters) == 0 {
		if conn := p.reserveLocked(); conn != nil {
			p.mu.Unlock()
			return conn, nil
		}
	}
	w := &waiter{done: make(chan struct{})}
	p.waiters = append(p.waiters, w)
	p.serveLocked() // room may have come free for those that wait already
	p.mu.Unlock()
	select {
	case <-w.done:
		return w.conn, w.err
	case <-ctx.Done():
		p.giveUp(w)
		return nil, errors.Wrapf(context.Cause(ctx), "waiting for a connection to %s", p.address)
	}
}

// giveUp removes a waiter. A connection that the waiter received meanwhile is released for others.
func (p *pool) giveUp(w *waiter) {
	p.mu.Lock()
	p.waiters = slices.DeleteFunc(p.waiters, func(other *waiter) bool { return other == w })
	conn := w.conn
	if conn != nil && !conn.settled {
		conn.unsettledRequests--
	}
	p.mu.Unlock()
	if conn != nil {
		conn.Release()
		conn.sending.Store(false)
	}
	p.serve()
}

// sent records that the headers of the request that conn was acquired for are being sent, or never
// will be. sent takes no lock, because net/http holds its own locks when it calls sent.
func (p *pool) sent(conn *clientConn) {
	conn.sending.Store(false)
	if p.waiting.Load() > 0 {
		go p.serve()
	}
}

// finished records that a request ended, with an answer or without. finished reports whether the
// connection had answered before.
func (p *pool) finished(conn *clientConn, answered bool) (answeredBefore bool) {
	p.mu.Lock()
	wasSettled := conn.settled
	switch {
	case wasSettled:
	case answered:
		conn.settled = true
	default:
		conn.unsettledRequests--
	}
	hasWaiters := !wasSettled && len(p.waiters) > 0
	p.mu.Unlock()
	if hasWaiters {
		p.serve()
	}
	return wasSettled
}

// settle lets a connection carry as many requests as its settings allow, although no request was
// answered.
func (p *pool) settle(conn *clientConn) {
	p.mu.Lock()
	conn.settled = true
	p.mu.Unlock()
	p.serve()
}

// changed is the state hook of connections: room may have become free, or a connection has ended.
// net/http may call changed with its locks held, from any goroutine, so changed takes no lock and
// does not block.
func (p *pool) changed(conn *http.ClientConn) {
	if p.waiting.Load() > 0 || conn.Err() != nil {
		go p.serve()
	}
}

// serve gives room to waiting requests, and dials if requests still wait.
func (p *pool) serve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serveLocked()
}

func (p *pool) serveLocked() {
	p.conns = slices.DeleteFunc(p.conns, func(conn *clientConn) bool { return conn.Err() != nil })
	promising := false
	for len(p.waiters) > 0 {
		promising = p.isPromisingLocked()
		conn := p.reserveLocked()
		if conn == nil {
			break
		}
		w := p.waiters[0]
		p.waiters[0] = nil // so that the waiter can be garbage collected
		p.waiters = p.waiters[1:]
		w.conn = conn
		close(w.done)
	}
	p.dialLocked(promising)
}

// reserveLocked reserves room on the oldest connection that has room, and returns the connection,
// nil if there is none. reserveLocked removes connections that will never have room again: those
// that have ended, and those without requests that still refuse one.
func (p *pool) reserveLocked() (reserved *clientConn) {
	p.conns = slices.DeleteFunc(p.conns, func(conn *clientConn) bool {
		if reserved != nil || conn.sending.Load() || !conn.settled && conn.unsettledRequests > 0 {
			return false
		}
		if conn.Reserve() == nil {
			conn.sending.Store(true)
			conn.reservedAt = time.Now()
			conn.unsettledRequests++
			reserved = conn
			return false
		}
		useless := conn.Err() != nil || conn.InFlight() == 0
		if useless {
			go func() { _ = conn.Close() }() // Close may take a while
		}
		return useless
	})
	return reserved
}

// dialLocked dials if requests wait, and no dial or request under way gives them room soon.
// promising is whether a connection was promising before the attempt to reserve room. Afterwards
// its request may have sent its headers, and then serve is called again.
func (p *pool) dialLocked(promising bool) {
	if len(p.waiters) == 0 {
		if p.timer != nil {
			p.timer.Stop()
		}
		return
	}
	// Call serve again in case a dial hangs, or a state hook misses a change while serve runs.
	if p.timer == nil {
		p.timer = time.AfterFunc(fallbackDelay, p.serve)
	} else {
		p.timer.Reset(fallbackDelay)
	}
	if promising {
		return
	}
	if n := len(p.dials); n == maxDials || n > 0 && time.Since(p.dials[n-1]) < fallbackDelay {
		return
	}
	startedAt := time.Now()
	p.dials = append(p.dials, startedAt)
	go p.run(startedAt)
}

func (p *pool) isPromisingLocked() bool {
	return slices.ContainsFunc(p.conns, (*clientConn).isPromising)
}

// isPromising reports whether the connection may soon have more room: when its first answer
// arrives, or when the headers of a request are sent. If the headers are not sent within
// fallbackDelay, because the server reads nothing, the connection is not promising.
func (c *clientConn) isPromising() bool {
	return !c.settled || c.sending.Load() && time.Since(c.reservedAt) < fallbackDelay
}

// run dials. The dial belongs to no single request, because other requests may wait for it. The
// dial ends with the transport.
func (p *pool) run(startedAt time.Time) {
	ctx, cancel := context.WithTimeout(p.life, dialTimeout)
	defer cancel()
	ctx, g := fencedconn.WithGuard(ctx)
	dialed, err := p.dial(ctx)
	var conn *clientConn
	if err == nil {
		conn = &clientConn{ClientConn: dialed, guard: g}
		dialed.SetStateHook(p.changed) // without mu, because SetStateHook calls the hook
	}
	p.mu.Lock()
	p.dials = slices.Delete(p.dials, slices.Index(p.dials, startedAt), slices.Index(p.dials, startedAt)+1)
	switch {
	case err == nil:
		p.conns = append(p.conns, conn)
		time.AfterFunc(fallbackDelay, func() { p.settle(conn) })
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
