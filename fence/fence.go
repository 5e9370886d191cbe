package fence

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkey-dev/latchkey/internal/term"
)

var (
	// ErrClosed is the error of what is not done because the fence is closed: this replica does not
	// hold the lease, or holds it no longer.
	ErrClosed = term.ErrClosed
	// ErrOutcomeUnknown is the error of a request that was under way when it had to end. The API
	// server may have carried it out, or may still do so. Read the object before you decide what to
	// do.
	ErrOutcomeUnknown = term.ErrOutcomeUnknown
)

// Term is one uninterrupted period in which a fence is open. Err returns nil while the term lasts,
// and then an error that wraps ErrClosed. Context returns a context that is done when the term
// ends. RoundTripper lets requests pass while the term lasts. A nil Term lasts for ever; the zero
// value is not ready to use. The methods may be called from any goroutine.
type Term = term.Term

// Fence is open while this replica holds a lease. The zero value is not ready to use;
// ForLeaderElection returns a Fence. Its methods may be called from any goroutine.
type Fence struct {
	now   func() time.Time
	lease atomic.Pointer[term.Lease] // the last one, which may have ended; nil before the first

	mu       sync.Mutex        // also serializes renewals
	watchers []chan<- struct{} // guarded by mu; each has room for one signal
}

func newFence() *Fence { return newFenceAt(time.Now) }

func newFenceAt(now func() time.Time) *Fence { return &Fence{now: now} }

// Open reports whether the fence is open: whether a request may start now. A nil Fence is not open.
func (f *Fence) Open() bool { return f != nil && f.Term().Err() == nil }

// Term returns the current term, the same one until the fence closes. While the fence is closed, it
// is a term that has ended. That of a nil Fence is nil, a term that lasts for ever.
func (f *Fence) Term() *Term {
	if f == nil {
		return nil
	}
	if lease := f.lease.Load(); lease != nil {
		return lease.Term()
	}
	return notYet
}

// notYet is the term before the first renewal of any lease.
var notYet = func() *Term {
	ended, end := term.Join()
	end("the lease was not taken yet")
	return ended
}()

// Remaining returns for how long the fence stays open if no renewal follows, 0 while it is closed.
func (f *Fence) Remaining() time.Duration {
	if f == nil {
		return 0
	}
	if lease := f.lease.Load(); lease != nil {
		return lease.Remaining()
	}
	return 0
}

// Watch calls changed after the fence has opened or closed, until ctx is done, one call at a time.
// Changes that follow each other quickly may be one call. The first call is at once. Watch returns
// when ctx is done.
func (f *Fence) Watch(ctx context.Context, changed func()) {
	signal := make(chan struct{}, 1)
	f.watch(signal)
	defer f.unwatch(signal)
	for {
		changed()
		select {
		case <-signal:
		case <-ctx.Done():
			return
		}
	}
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

func (f *Fence) notify() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notifyLocked()
}

func (f *Fence) notifyLocked() {
	for _, signal := range f.watchers {
		select {
		case signal <- struct{}{}:
		default: // the watcher has not yet begun to handle the last change
		}
	}
}

// RoundTripper returns a RoundTripper whose requests pass the fence: none starts while it is
// closed, and those under way end when it closes, streams included. Use it with rest.Config's Wrap.
// A nil Fence lets all requests pass.
func (f *Fence) RoundTripper(next http.RoundTripper) http.RoundTripper {
	if f == nil {
		return next
	}
	return term.NewRoundTripper(next, f.Term)
}

// renewed records that the lease was renewed by a request that was sent at that time, for duration.
// count is the number of the term that the renewal begins if the fence is closed. A term that has
// ended is not begun again: the next renewal has the next number.
func (f *Fence) renewed(sent time.Time, duration time.Duration, count int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if last := f.lease.Load(); last != nil &&
		(last.Renew(sent, duration) || term.Count(last.Term()) == count) {
		return
	}
	lease := term.NewLease(f.now, sent, duration)
	if lease == nil {
		return // the lease had ended before the answer came
	}
	f.lease.Store(lease.Counted(count))
	context.AfterFunc(lease.Term().Context(), f.notify)
	f.notifyLocked()
}

// close closes the fence, until the next renewal.
func (f *Fence) close(cause string) {
	if lease := f.lease.Load(); lease != nil {
		lease.End(fmt.Errorf("%s: %w", cause, ErrClosed))
	}
}
