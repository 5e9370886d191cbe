package accessor

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/internal/workpool"
	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// grants asks whether what was refused to identities is granted by now, and notifies the sources:
// after changes of RBAC that concern the identity, if they are watched, and else every
// AccessReviewInterval. It asks nothing for identities to which nothing was refused. Asking decides
// when.
type grants struct {
	set *Set

	mu      sync.Mutex
	waiting map[*identityAccessor]*waitingForGrant // guarded by mu
	changed chan struct{}                          // has room for one: something may be due
}

// waitingForGrant is a connection whose identity was refused something.
type waitingForGrant struct {
	permissions.Asking
	conn   *connection.Connection
	record *recordOf
	stop   []func() // guarded by the mu of grants; called once, without mu
}

// scanInterval is the least time between two looks at what is due.
const scanInterval = 100 * time.Millisecond

// defaultInterval is that of AccessReviewInterval.
const defaultInterval = 60 * time.Second

// interval returns how long it is until the next question: it differs, so that questions about many
// identities are not sent at once.
func (g *grants) interval() time.Duration {
	interval := g.set.options.Cache.Scopes.AccessReviewInterval
	if interval <= 0 {
		interval = defaultInterval
	}
	return time.Duration((0.8 + 0.2*rand.Float64()) * float64(interval))
}

// refused notes that something was refused to an identity, by its connection. It does not block,
// and may be called from any goroutine.
func (g *grants) refused(a *identityAccessor, conn *connection.Connection, record *recordOf) {
	now, interval := time.Now(), g.interval()
	g.mu.Lock()
	if conn.Life().Err() != nil {
		g.mu.Unlock()
		return
	}
	w := g.waiting[a]
	added := w == nil || w.conn != conn // that of an earlier connection has ended
	if added {
		if g.waiting == nil {
			g.waiting = map[*identityAccessor]*waitingForGrant{}
		}
		w = &waitingForGrant{conn: conn, record: record}
		g.waiting[a] = w
	}
	w.Refused(now, interval)
	g.mu.Unlock()
	if added {
		g.follow(a, w)
	}
	g.look()
}

// follow ends what waits with its connection, and listens to changes of RBAC for it.
func (g *grants) follow(a *identityAccessor, w *waitingForGrant) {
	stop := []func(){w.conn.OnRBACChange(func() {
		g.mu.Lock()
		w.Changed(time.Now())
		g.mu.Unlock()
		g.look()
	})}
	ended := context.AfterFunc(w.conn.Life(), func() { g.forget(a, w) })
	stop = append(stop, func() { ended() })
	g.mu.Lock()
	current := g.waiting[a] == w
	if current {
		w.stop = stop
	}
	g.mu.Unlock()
	if !current { // it has ended meanwhile
		for _, f := range stop {
			f()
		}
	}
}

// forget ends a wait.
func (g *grants) forget(a *identityAccessor, w *waitingForGrant) {
	g.mu.Lock()
	if g.waiting[a] == w {
		delete(g.waiting, a)
	}
	stop := w.stop
	w.stop = nil
	g.mu.Unlock()
	for _, f := range stop {
		f()
	}
}

// look makes run look for what is due.
func (g *grants) look() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// run asks what is due until ctx is done.
func (g *grants) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(max(scanInterval, g.askWhatIsDue(time.Now())))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-g.changed:
			select { // many changes are one look
			case <-ctx.Done():
				return
			case <-time.After(scanInterval):
			}
		}
	}
}

// askWhatIsDue begins the questions that are due, and returns how long it is until the next one.
func (g *grants) askWhatIsDue(now time.Time) time.Duration {
	next := time.Hour
	begun := map[*identityAccessor]*waitingForGrant{}
	g.mu.Lock()
	for a, w := range g.waiting {
		if w.Begin(now) {
			begun[a] = w
		} else if due, ok := w.Due(); ok {
			next = min(next, due.Sub(now))
		}
	}
	g.mu.Unlock()
	for a, w := range begun {
		g.submit(a, w)
	}
	return next
}

// submit asks in the pool, after connects and probes.
func (g *grants) submit(a *identityAccessor, w *waitingForGrant) {
	a.mu.Lock()
	membership := a.membership
	a.mu.Unlock()
	if membership == nil {
		g.forget(a, w)
		return
	}
	g.set.attempts.Submit(membership.Host(), membership.Reachability, workpool.Deferred, func() { g.ask(a, w) })
}

// ask asks about all that is refused, and notifies the sources if that is to be tried again.
func (g *grants) ask(a *identityAccessor, w *waitingForGrant) {
	refused, _ := w.record.Refused(time.Now())
	for _, p := range w.conn.Allowed(refused) {
		w.conn.Granted(p)
	}
	refused, others := w.record.Refused(time.Now())
	result := permissions.Asked{Refused: len(refused) > 0, Others: others, Cleared: w.record.TakeCleared()}
	interval := g.interval()
	var stop []func()
	g.mu.Lock()
	tryAgain := w.End(time.Now(), interval, result)
	if w.Idle() && g.waiting[a] == w {
		delete(g.waiting, a)
		stop, w.stop = w.stop, nil
	}
	g.mu.Unlock()
	for _, f := range stop {
		f()
	}
	g.look()
	if tryAgain {
		a.notifyGranted(w.conn)
	}
}

// notifyGranted notifies the sources, in order with what else the accessor notifies them of, unless
// the connection has ended.
func (a *identityAccessor) notifyGranted(conn *connection.Connection) {
	a.mu.Lock()
	if a.conn != conn {
		a.mu.Unlock()
		return
	}
	drain := a.effects.append(a.afterEffectLocked(lifecycle.Notify{}, eventPayload{}, previousState{}))
	a.mu.Unlock()
	if drain {
		a.effects.drain()
	}
}
