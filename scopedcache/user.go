package scopedcache

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/time/rate"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/latchkey-dev/latchkey/internal/latch"
	"github.com/latchkey-dev/latchkey/internal/replay"
)

// user is who uses the scopes of a set: reads them, holds them, and has handlers at their
// informers. A user has a life of its own, which starts once and stops once; what it waits for ends
// with that life, and so does all that it has.
type user struct {
	timeout time.Duration // bounds every read
	started latch.Latch   // opened when the life begins
	over    latch.Latch   // opened when the life has ended
	shares  bool          // there may be other users of the same scopes
	since   uint64        // reads have all that was written before that term began; zero for none
	uses    sync.Map      // from *entry to *use; written under entries.mu
	named   int           // guarded by entries.mu: the number of uses of scopes that reads began for one name
	left    []replay.Turn // guarded by entries.mu: of handlers that were removed while they were called
	asked   *rate.Limiter // of reviews of single names
	// changed is called when one of the user's scopes has begun, ended, or changed, and stateChanged
	// for each change of the state of one. Both must not block, and are called under locks.
	changed      func()
	stateChanged func(before State, now ScopeState)

	life context.Context // set before started opens, then never changed
}

func newUser(timeout time.Duration, changed func(), stateChanged func(State, ScopeState)) *user {
	if changed == nil {
		changed = func() {}
	}
	if stateChanged == nil {
		stateChanged = func(State, ScopeState) {}
	}
	return &user{
		timeout:      timeout,
		asked:        rate.NewLimiter(namesPerSecond, namesBurst),
		changed:      changed,
		stateChanged: stateChanged,
	}
}

// begin begins the life, which ends with ctx. Then end is called in a goroutine. Call begin once.
func (u *user) begin(ctx context.Context, end func()) {
	u.life = ctx
	u.started.Open()
	context.AfterFunc(ctx, func() {
		u.over.Open()
		end()
	})
}

// hasBegun reports whether the life has begun.
func (u *user) hasBegun() bool { return u.started.IsOpen() }

// stopped returns a channel that is closed when the life has ended.
func (u *user) stopped() <-chan struct{} { return u.over.Done() }

// hasEnded reports whether the life has begun and ended.
func (u *user) hasEnded() bool { return u.hasBegun() && !u.runs() }

// stopError returns why the life has ended, or why it will never begin.
func (u *user) stopError() error {
	if !u.hasBegun() {
		return errors.WithStack(ErrStopped)
	}
	if cause := context.Cause(u.life); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return errors.WithStack(ErrStopped)
}

// check returns an error if the life has not begun or has ended, so that no read is possible.
func (u *user) check() error {
	if !u.hasBegun() {
		return &cache.ErrCacheNotStarted{}
	}
	if !u.runs() {
		return u.stopError()
	}
	return nil
}

// runs reports whether the life has not ended. Call it only after the life has begun, for example
// if there is an informer.
func (u *user) runs() bool { return u.life.Err() == nil }

// withReadTimeout returns a context that ends with the caller's, after the timeout of reads, or
// with the user's life.
func (u *user) withReadTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancelTimeout := context.WithTimeoutCause(ctx, u.timeout,
		errors.WithMessagef(context.DeadlineExceeded, "a cached read waits for %s at most", u.timeout))
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(u.life, func() { cancel(u.stopError()) })
	return ctx, func() {
		stop()
		cancel(nil)
		cancelTimeout()
	}
}
