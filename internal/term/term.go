package term

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
)

var (
	// ErrClosed is fence.ErrClosed.
	ErrClosed = errors.New("this replica does not hold the lease")
	// ErrOutcomeUnknown is fence.ErrOutcomeUnknown.
	ErrOutcomeUnknown = errors.New("the request was under way, and its outcome is unknown")
)

// Term is one uninterrupted period in which a replica may act: that in which it holds a lease, or
// one in which all parents last. A nil Term lasts for ever. The methods may be called from any
// goroutine.
type Term struct {
	lease   *Lease  // whose term this is; nil for one that Join returned
	parents []*Term // with which the term ends
	began   uint64  // see Began
	ctx     context.Context
	cancel  context.CancelCauseFunc
}

// Join returns a term that lasts while all parents last; nil ones are left out. end ends it
// earlier, and no parent: from then on Err returns an error with that cause, which wraps ErrClosed.
// What Join holds is released when end is called, or a parent ends.
func Join(parents ...*Term) (joined *Term, end func(cause string)) {
	joined = &Term{
		parents: slices.DeleteFunc(parents, func(parent *Term) bool { return parent == nil }),
		began:   latest.Add(1),
	}
	from := context.Background()
	if len(joined.parents) > 0 {
		from = joined.parents[0].ctx
	}
	joined.ctx, joined.cancel = context.WithCancelCause(from)
	for i := 1; i < len(joined.parents); i++ {
		other := joined.parents[i].ctx
		stop := context.AfterFunc(other, func() { joined.cancel(context.Cause(other)) })
		context.AfterFunc(joined.ctx, func() { stop() })
	}
	return joined, func(cause string) { joined.cancel(fmt.Errorf("%s: %w", cause, ErrClosed)) }
}

// latest is the number of terms of this process that have begun.
var latest atomic.Uint64

// Began returns how many terms of this process have begun with this one, zero for nil. What was
// done when [Latest] was at least as large was done after the term had begun, and so after all that
// others did in its place.
func Began(t *Term) uint64 {
	if t == nil {
		return 0
	}
	return t.began
}

// Count returns the number of a term among those of its lease, by all holders, and of several
// leases that of the first one: it grows from one term to the next. Zero for nil.
func Count(t *Term) int64 {
	switch {
	case t == nil:
		return 0
	case t.lease != nil:
		return t.lease.count
	case len(t.parents) > 0:
		return Count(t.parents[0])
	default:
		return 0
	}
}

// Latest returns how many terms of this process have begun.
func Latest() uint64 { return latest.Load() }

// Err returns nil while the term lasts, and then an error that wraps ErrClosed. Err compares the
// time itself: for each lease that the term needs, it costs an atomic load and a reading of the
// clock.
func (t *Term) Err() error {
	if t == nil {
		return nil
	}
	if t.lease != nil && !t.lease.lasts() {
		return context.Cause(t.ctx)
	}
	for _, parent := range t.parents {
		if err := parent.Err(); err != nil {
			return cmp.Or(context.Cause(t.ctx), err) // a context that ends by another one may be late
		}
	}
	if t.lease == nil && t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	return nil
}

// Context returns a context that is done when the term ends. Its cause wraps ErrClosed. A context
// is done by a timer, so it can be late; Err is not.
func (t *Term) Context() context.Context {
	if t == nil {
		return context.Background()
	}
	return t.ctx
}

type contextKey struct{}

// With returns a context for a request that needs the term.
func With(ctx context.Context, t *Term) context.Context {
	return context.WithValue(ctx, contextKey{}, t)
}

// Of returns the term that the request with this context needs, nil if none.
func Of(ctx context.Context) *Term {
	t, _ := ctx.Value(contextKey{}).(*Term)
	return t
}
