package fence

import (
	"context"
	"sync"
)

// both is a fence within another one.
type both struct {
	outer, inner *Fence

	mu    sync.Mutex
	joint *Term // guarded by mu; the last one
}

// Within returns a fence that is open while f and outer are open. Its terms end with a term of
// either. The result is the same for each call with the same outer; use one outer for each f.
func (f *Fence) Within(outer *Fence) *Fence {
	if last := f.with.Load(); last != nil && last.both.outer == outer {
		return last
	}
	next := &Fence{both: &both{outer: outer, inner: f}}
	if f.with.CompareAndSwap(nil, next) {
		return next
	}
	if last := f.with.Load(); last.both.outer == outer { // another goroutine was faster
		return last
	}
	return next
}

// term returns the term that both terms have in common, nil while one fence is closed.
func (b *both) term() *Term {
	outer, inner := b.outer.Term(), b.inner.Term()
	if outer == nil || inner == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.joint != nil && b.joint.parent == inner && b.joint.also == outer {
		return b.joint
	}
	joint := &Term{parent: inner, also: outer}
	joint.ctx, joint.end = context.WithCancelCause(inner.ctx)
	stop := context.AfterFunc(outer.ctx, func() { joint.end(context.Cause(outer.ctx)) })
	context.AfterFunc(inner.ctx, func() { stop() })
	b.joint = joint
	return joint
}
