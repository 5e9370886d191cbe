package accessor

import (
	"sync"
	"time"
)

// goroutines counts goroutines so that their owner can wait for their end. The zero value is ready.
type goroutines struct {
	mu     sync.Mutex
	closed bool // guarded by mu
	group  sync.WaitGroup
}

// start runs f in a goroutine, unless wait was called. f must end when its connection does.
func (g *goroutines) start(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.group.Go(f)
	}
}

// wait returns when all have ended, or after patience, and reports whether they have; none starts any more.
func (g *goroutines) wait(patience time.Duration) bool {
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
