package latch

import "sync/atomic"

// Latch opens once. The zero value is closed. Methods may be called from any goroutine, and do not
// block.
type Latch struct{ state atomic.Pointer[chan struct{}] } // nil, or what someone waits for, or openChannel

// openChannel is the channel of all latches that are open.
var openChannel = func() *chan struct{} {
	c := make(chan struct{})
	close(c)
	return &c
}()

// Open opens the latch, and reports whether this call did it.
func (l *Latch) Open() bool {
	before := l.state.Swap(openChannel)
	if before == openChannel {
		return false
	}
	if before != nil {
		close(*before)
	}
	return true
}

// IsOpen reports whether the latch is open.
func (l *Latch) IsOpen() bool { return l.state.Load() == openChannel }

// Done returns a channel that is closed when the latch opens.
func (l *Latch) Done() <-chan struct{} {
	for {
		if c := l.state.Load(); c != nil {
			return *c
		}
		c := make(chan struct{})
		if l.state.CompareAndSwap(nil, &c) {
			return c
		}
	}
}
