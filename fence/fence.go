package fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrClosed is the error of what is not done because the fence is closed: this replica does not
	// hold the lease, or holds it no longer.
	ErrClosed = errors.New("this replica does not hold the lease")
	// ErrOutcomeUnknown is the error of a request that was under way when it had to end. The API
	// server may have carried it out, or may still do so. Read the object before you decide what to
	// do.
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

	both *both                 // of a fence that Within has returned, which has no lease of its own
	with atomic.Pointer[Fence] // what Within has returned
}

// lease is until when the replica holds the lease. A lease is immutable: each renewal makes
// another.
type lease struct {
	until time.Duration // since base
	term  *Term
}

// Term is a time without a gap in which a fence is open, or a part of one. Its methods may be
// called from any goroutine.
type Term struct {
	fence  *Fence // nil for a part
	parent *Term  // that this is a part of; nil for a whole term, and for a part of no term
	also   *Term  // that this is a part of as well; nil for none
	over   atomic.Bool
	ctx    context.Context // done when the term ends; its cause wraps ErrClosed
	end    context.CancelCauseFunc
}

// Part returns a part of the term: it ends with the term, or before, when End is called. A part of
// a nil Term ends with End only. The caller must call End.
func (t *Term) Part() *Term {
	parent := context.Background()
	if t != nil {
		parent = t.ctx
	}
	part := &Term{parent: t}
	part.ctx, part.end = context.WithCancelCause(parent)
	return part
}

// End ends a part of a term: from then on Err returns an error with this cause, which wraps
// ErrClosed.
func (t *Term) End(cause string) {
	if t.fence != nil || t.also != nil {
		return // a whole term ends with its lease, or its leases
	}
	t.end(fmt.Errorf("%s: %w", cause, ErrClosed)) // first, so that a caller of Err finds the cause
	t.over.Store(true)
}

func newFence() *Fence { return newFenceAt(time.Now) }

func newFenceAt(now func() time.Time) *Fence { return &Fence{now: now, base: now()} }

// Open reports whether the fence is open: whether a request may start now.
func (f *Fence) Open() bool { return f.Term() != nil }

// Term returns the current term, nil while the fence is closed. A nil Fence has no terms.
func (f *Fence) Term() *Term {
	switch {
	case f == nil:
		return nil
	case f.both != nil:
		return f.both.term()
	}
	l := f.lease.Load()
	if l != nil && f.elapsed() >= l.until {
		l = f.settle()
	}
	if l == nil {
		return nil
	}
	return l.term
}

// settle ends the term if its lease has ended, and returns the lease that lasts, nil for none. The
// first caller that sees the end of a lease ends the term for all callers, so that a term never
// seems to go on after its end.
func (f *Fence) settle() *lease {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.settleLocked()
}

func (f *Fence) settleLocked() *lease {
	l := f.lease.Load()
	if l != nil && f.elapsed() >= l.until {
		f.closeLocked(errNotRenewed)
		return nil
	}
	return l
}

// errNotRenewed is why a term ends by itself.
var errNotRenewed = fmt.Errorf("the lease was not renewed in time: %w", ErrClosed)

// Remaining returns for how long the fence stays open if no renewal follows, 0 while it is closed.
func (f *Fence) Remaining() time.Duration {
	switch {
	case f == nil:
		return 0
	case f.both != nil:
		return min(f.both.outer.Remaining(), f.both.inner.Remaining())
	}
	if l := f.lease.Load(); l != nil {
		return max(0, l.until-f.elapsed())
	}
	return 0
}

// elapsed returns the time since base, by the monotonic clock.
func (f *Fence) elapsed() time.Duration { return f.now().Sub(f.base) }

// Watch calls changed after the fence has opened or closed, until ctx is done, one call at a time.
// Changes that follow each other quickly may be one call. The first call is at once. Watch returns
// when ctx is done.
func (f *Fence) Watch(ctx context.Context, changed func()) {
	signal := make(chan struct{}, 1)
	for _, lease := range f.leases() {
		lease.watch(signal)
		defer lease.unwatch(signal)
	}
	for {
		changed()
		select {
		case <-signal:
		case <-ctx.Done():
			return
		}
	}
}

// leases returns the fences with a lease of their own that this one consists of.
func (f *Fence) leases() []*Fence {
	if f.both == nil {
		return []*Fence{f}
	}
	return append(f.both.outer.leases(), f.both.inner.leases()...)
}

func (f *Fence) watch(signal chan<- struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers = append(f.watchers, signal)
}

func (f *Fence) unwatch(signal chan<- struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers = slices.DeleteFunc(f.watchers, func(other chan<- struct{}) bool { return other == signal })
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
	last, until := f.settleLocked(), sent.Sub(f.base)+duration
	if until <= f.elapsed() {
		return // the lease had ended before the answer came
	}
	if last != nil && last.until >= until {
		return
	}
	opens := last == nil
	next := &lease{until: until}
	if opens {
		next.term = &Term{fence: f}
		next.term.ctx, next.term.end = context.WithCancelCause(context.Background())
	} else {
		next.term = last.term
	}
	f.lease.Store(next)
	f.armLocked()
	if opens {
		f.notifyLocked()
	}
}

// armLocked makes the term end in time. A timer that fires early, because the lease was renewed, is
// set again.
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
			f.closeLocked(errNotRenewed)
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
	l := f.lease.Load()
	if l == nil {
		return
	}
	l.term.end(cause) // first, so that a caller that sees no lease finds the cause
	f.lease.Store(nil)
	if f.timer != nil {
		f.timer.Stop() // the next lease has another end
		f.timer = nil
	}
	f.notifyLocked()
}

// Err returns nil while the term lasts, and then an error that wraps ErrClosed. Err compares the
// time itself: it costs an atomic load and a reading of the clock.
func (t *Term) Err() error {
	switch {
	case t == nil:
		return nil
	case t.fence == nil && t.over.Load():
		return cmp.Or(context.Cause(t.ctx), ErrClosed)
	case t.fence == nil:
		return cmp.Or(t.parent.Err(), t.also.Err())
	}
	l := t.fence.lease.Load()
	if l != nil && t.fence.elapsed() >= l.until {
		l = t.fence.settle()
	}
	if l != nil && l.term == t {
		return nil
	}
	return cmp.Or(context.Cause(t.ctx), errNotRenewed)
}

// Context returns a context that is done when the term ends. Its cause wraps ErrClosed. A context
// is done by a timer, so it can be late; Err is not.
func (t *Term) Context() context.Context { return t.ctx }
