package accessor

import (
	"sync"

	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
)

// afterEffects runs the after effects of one accessor, in order and one at a time. A goroutine that
// finds no effect running runs the queued effects. Other goroutines only append.
type afterEffects struct {
	spawn func(func()) // runs a function in another goroutine

	mu      sync.Mutex              // may be locked under the accessor's mu; not locked while an effect runs
	queue   lifecycle.Queue[func()] // guarded by mu
	drained chan struct{}           // guarded by mu; closed when the queue is idle; nil unless wait is blocked
}

// append adds the effects of a step, and reports whether the caller is to call drain. Another
// goroutine may run the effects at once, so append is the last act of a step.
func (q *afterEffects) append(effects ...func()) (drain bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue.Append(effects...)
	return q.queue.Take()
}

// drain runs effects until the queue is empty. If an effect panics, another goroutine runs the
// rest.
func (q *afterEffects) drain() {
	for {
		q.mu.Lock()
		next, ok := q.queue.Next()
		if !ok {
			q.notifyDrainedLocked()
		}
		q.mu.Unlock()
		if !ok {
			return
		}
		q.runOne(next)
	}
}

func (q *afterEffects) runOne(effect func()) {
	returned := false
	defer func() {
		if !returned {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.queue.GiveBack()
			if q.queue.Take() {
				q.spawn(q.drain)
			} else {
				q.notifyDrainedLocked()
			}
		}
	}()
	effect()
	returned = true
}

func (q *afterEffects) notifyDrainedLocked() {
	if q.drained != nil {
		close(q.drained)
		q.drained = nil
	}
}

// wait returns when all effects have run.
func (q *afterEffects) wait() {
	for {
		q.mu.Lock()
		if q.queue.Idle() {
			q.mu.Unlock()
			return
		}
		if q.queue.Take() {
			q.mu.Unlock()
			q.drain()
			continue
		}
		if q.drained == nil {
			q.drained = make(chan struct{})
		}
		drained := q.drained
		q.mu.Unlock()
		<-drained
	}
}
