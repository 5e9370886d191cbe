package workpool

import (
	"sync"
	"time"
)

// TaskGroup counts goroutines, so that the owner can wait until they end. The zero value is ready
// to use.
type TaskGroup struct {
	// Parent, if set, waits for the goroutines of this group, too. Set it before use.
	Parent *TaskGroup

	mu     sync.Mutex
	closed bool // guarded by mu
	group  sync.WaitGroup
}

// Start runs f in a goroutine and returns true. After Wait was called, Start returns false and does
// not run f; so it does after Wait of the parent. f must end when its connection ends.
func (g *TaskGroup) Start(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return false
	case g.Parent == nil:
		g.group.Go(f)
		return true
	}
	g.group.Add(1)
	started := g.Parent.Start(func() {
		defer g.group.Done()
		f()
	})
	if !started {
		g.group.Done()
	}
	return started
}

// Add counts something that ends with its connection and is no goroutine. The caller calls done
// once, when it has ended. After Wait was called, or Wait of the parent, ok is false.
func (g *TaskGroup) Add() (done func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, false
	}
	doneForParent := func() {}
	if g.Parent != nil {
		if doneForParent, ok = g.Parent.Add(); !ok {
			return nil, false
		}
	}
	g.group.Add(1)
	return func() {
		g.group.Done()
		doneForParent()
	}, true
}

// Wait returns when all goroutines have ended, or after patience, and reports whether all have
// ended. No goroutine starts after Wait was called.
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
