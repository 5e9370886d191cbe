package term

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// errNotRenewed is why a lease ends by itself.
var errNotRenewed = fmt.Errorf("the lease was not renewed in time: %w", ErrClosed)

// Lease is a lease that this replica holds without a gap. A lease that has ended stays ended: the
// next renewal makes another Lease. Its methods may be called from any goroutine.
type Lease struct {
	now   func() time.Time
	base  time.Time    // with a monotonic reading
	until atomic.Int64 // in nanoseconds since base; 0 once the lease has ended
	count int64        // see Count
	term  Term

	mu    sync.Mutex
	timer *time.Timer // guarded by mu; ends the lease in time; nil once the lease has ended
}

// NewLease returns the lease that a renewal made which was sent at that time, for duration, or nil
// if that lease has ended already. now is the clock.
func NewLease(now func() time.Time, sent time.Time, duration time.Duration) *Lease {
	l := &Lease{now: now, base: sent}
	if duration <= l.elapsed() {
		return nil
	}
	l.until.Store(int64(duration))
	l.term.lease, l.term.began = l, latest.Add(1)
	l.term.ctx, l.term.cancel = context.WithCancelCause(context.Background())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(l.Remaining(), l.endInTime)
	return l
}

// Counted sets what Count returns for the lease's term, and returns the lease. It is called before
// others know the lease.
func (l *Lease) Counted(count int64) *Lease {
	l.count = count
	return l
}

// Term returns the term that lasts as long as the lease.
func (l *Lease) Term() *Term { return &l.term }

// elapsed returns the time since base, by the monotonic clock.
func (l *Lease) elapsed() time.Duration { return l.now().Sub(l.base) }

// Remaining returns how long the lease lasts if no renewal follows, 0 if it has ended.
func (l *Lease) Remaining() time.Duration {
	return max(0, time.Duration(l.until.Load())-l.elapsed())
}

// Renew makes the lease last for duration after sent, the time at which the renewal was sent. An
// earlier renewal shortens nothing. Renew returns false if the lease has ended before.
func (l *Lease) Renew(sent time.Time, duration time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Remaining() == 0 {
		l.endLocked(errNotRenewed)
		return false
	}
	l.until.Store(max(l.until.Load(), int64(sent.Sub(l.base)+duration)))
	return true
}

// endInTime ends the lease, unless it was renewed. Then it sets the timer again.
func (l *Lease) endInTime() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil && l.Remaining() > 0 {
		l.timer.Reset(l.Remaining())
		return
	}
	l.endLocked(errNotRenewed)
}

// End ends the lease. cause wraps ErrClosed; the first cause stays.
func (l *Lease) End(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(cause)
}

func (l *Lease) endLocked(cause error) {
	if l.timer == nil {
		return
	}
	l.timer.Stop()
	l.timer = nil
	l.until.Store(0)     // first: what the end of the context starts finds the lease ended
	l.term.cancel(cause) // before mu is unlocked: lasts, which waits for mu, is asked before the cause
}

// lasts reports whether the lease lasts. If its time is over, lasts ends it.
func (l *Lease) lasts() bool {
	if l.elapsed() < time.Duration(l.until.Load()) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Remaining() > 0 {
		return true // it was renewed meanwhile
	}
	l.endLocked(errNotRenewed)
	return false
}
