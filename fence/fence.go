package fence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrClosed is the error of what is not done because the fence is closed: this replica does not hold
	// the lease, or holds it no longer.
	ErrClosed = errors.New("this replica does not hold the lease")
	// ErrOutcomeUnknown is the error of a request that was under way when it had to end. The API server
	// may have carried it out, or may still do so. Read the object before you decide what to do.
	ErrOutcomeUnknown = errors.New("the request was under way, and its outcome is unknown")
)

// Fence is open while this replica holds a lease. The zero value is not ready to use;
// ForLeaderElection returns a Fence. Its methods may be called from any goroutine.
type Fence struct {
	now   func() time.Time
	base  time.Time             // with a monotonic reading
	lease atomic.Pointer[lease] // nil before the first renewal

	mu       sync.Mutex
	timer    *time.Timer       // guarded by mu; ends the term in time
	watchers []chan<- struct{} // guarded by mu; each has room for one signal
}

// lease is until when the replica holds the lease. A lease is immutable: each renewal makes another.
type lease struct {
	until time.Duration // since base
	term  *Term
}

// Term is a time without a gap in which a fence is open. Its methods may be called from any goroutine.
type Term struct {
	fence *Fence
	ctx   context.Context // done when the term ends; its cause wraps ErrClosed
	end   context.CancelCauseFunc
}

func newFence() *Fence { return newFenceAt(time.Now) }

func newFenceAt(now func() time.Time) *Fence { return &Fence{now: now, base: now()} }

// Open reports whether the fence is open: whether a request may start now.
func (f *Fence) Open() bool { return f.Term() != nil }

// Term returns the current term, nil while the fence is closed. A nil Fence has no terms.
func (f *Fence) Term() *Term {
	if f == nil {
		return nil
	}
	if l := f.lease.Load(); l != nil && f.elapsed() < l.until {
		return l.term
	}
	return nil
}

// Remaining returns for how long the fence stays open if no renewal follows, 0 while it is closed.
func (f *Fence) Remaining() time.Duration {
	if l := f.lease.Load(); l != nil {
		return max(0, l.until-f.elapsed())
	}
	return 0
}

// elapsed returns the time since base, by the monotonic clock.
func (f *Fence) elapsed() time.Duration { return f.now().Sub(f.base) }

// Watch calls changed after the fence has opened or closed, until ctx is done, one call at a time.
// Changes that follow each other quickly may be one call. The first call is at once. Watch returns when
// ctx is done.
func (f *Fence) Watch(ctx context.Context, changed func()) {
	signal := make(chan struct{}, 1)
	f.mu.Lock()
	f.watchers = append(f.watchers, signal)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.watchers = slices.DeleteFunc(f.watchers, func(other chan<- struct{}) bool { return other == signal })
	}()
	for {
		changed()
		select {
		case <-signal:
		case <-ctx.Done():
			return
		}
	}
}

func (f *Fence) notifyLocked() {
	for _, signal := range f.watchers {
		select {
		case signal <- struct{}{}:
		default: // the watcher has not yet begun to handle the last change
		}
	}
}

// renewed records that the lease was renewed by a request that was sent at that time, for duration.
func (f *Fence) renewed(sent time.Time, duration time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	until, term := sent.Sub(f.base)+duration, f.Term()
	if until <= f.elapsed() {
		return // the lease had ended before the answer came
	}
	if l := f.lease.Load(); term != nil && l.until >= until {
		return
	}
	opens := term == nil
	if opens {
		f.closeLocked(ErrClosed) // the last term has ended, although no timer has noticed
		term = &Term{fence: f}
		term.ctx, term.end = context.WithCancelCause(context.Background())
	}
	f.lease.Store(&lease{until: until, term: term})
	f.armLocked()
	if opens {
		f.notifyLocked()
	}
}

// armLocked makes the term end in time. A timer that fires early, because the lease was renewed, is set
// again.
func (f *Fence) armLocked() {
	if f.timer != nil {
		return
	}
	f.timer = time.AfterFunc(f.Remaining(), func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.timer = nil
		switch {
		case f.Remaining() > 0:
			f.armLocked()
		default:
			f.closeLocked(fmt.Errorf("the lease was not renewed in time: %w", ErrClosed))
		}
	})
}

// close closes the fence, until the next renewal.
func (f *Fence) close(cause string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closeLocked(fmt.Errorf("%s: %w", cause, ErrClosed))
}

func (f *Fence) closeLocked(cause error) {
	l := f.lease.Swap(nil)
	if l == nil {
		return
	}
	l.term.end(cause)
	f.notifyLocked()
}

// Err returns nil while the term lasts, and then an error that wraps ErrClosed. Err compares the time
// itself: it costs an atomic load and a reading of the clock.
func (t *Term) Err() error {
	if t == nil {
		return nil
	}
	if l := t.fence.lease.Load(); l != nil && l.term == t && t.fence.elapsed() < l.until {
		return nil
	}
	return t.closed()
}

// closed returns why the term has ended.
func (t *Term) closed() error {
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	return fmt.Errorf("the lease was not renewed in time: %w", ErrClosed)
}

// Context returns a context that is done when the term ends. Its cause wraps ErrClosed. A context is
// done by a timer, so it can be late; Err is not.
func (t *Term) Context() context.Context { return t.ctx }
