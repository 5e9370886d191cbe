package workpool

import (
	"sync"
	"time"
)

// TaskGroup counts goroutines so that their owner can wait for their end. The zero value is ready.
type TaskGroup struct {
	mu     sync.Mutex
	closed bool // guarded by mu
	group  sync.WaitGroup
}

// Start runs f in a goroutine, unless Wait was called: then it returns false. f must end when its
// connection does.
func (g *TaskGroup) Start(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.group.Go(f)
	}
	return !g.closed
}

// Wait returns when all have ended, or after patience, and reports whether they have; none starts
// any more.
func (g *TaskGroup) Wait(patience time.Duration) bool {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.group.Wait()
	}()
	select {
	case <-ended:
		return true
	case <-time.After(patience):
		return false
	}
}
