package accessor

import (
	"sync"

	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
)

// afterEffects runs the after effects of one accessor, in order and one at a time. The goroutine
// that finds nothing running runs them, others only append.
type afterEffects struct {
	aside func(func()) // runs a function in another goroutine

	mu      sync.Mutex              // may be taken under the accessor's mu; is not held while an effect runs
	queue   lifecycle.Queue[func()] // guarded by mu
	drained chan struct{}           // guarded by mu; closed when the queue is idle; nil unless wait waits
}

func (q *afterEffects) append(effect func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue.Append(effect)
}

// take reports whether the caller is to call drain.
func (q *afterEffects) take() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queue.Take()
}

// run runs what waits, unless another goroutine does.
func (q *afterEffects) run() {
	if q.take() {
		q.drain()
	}
}

// runAside is run in another goroutine.
func (q *afterEffects) runAside() {
	if q.take() {
		q.aside(q.drain)
	}
}

// drain runs effects until there are none. If one panics, another goroutine runs the rest.
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
				q.aside(q.drain)
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
