package deepcall

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// PanicError is what Run panics with if the function has panicked.
type PanicError struct {
	Cause any
	Stack []byte // of the goroutine that panicked
}

// Error implements error, so that a log shows the stack of the function.
func (p *PanicError) Error() string { return fmt.Sprintf("%v\n\n%s", p.Cause, p.Stack) }

// Unwrap returns the cause, if it is an error.
func (p *PanicError) Unwrap() error {
	err, _ := p.Cause.(error)
	return err
}

// Run returns what f returns. f runs on another goroutine. If f panics, Run panics with a
// *PanicError. If f ends its goroutine with runtime.Goexit, so does Run.
func Run[T any](f func() T) T {
	type outcome struct {
		value    T
		returned bool
		panicked *PanicError
	}
	outcomes := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if !o.returned {
				if cause := recover(); cause != nil {
					o.panicked = &PanicError{Cause: cause, Stack: debug.Stack()}
				}
			}
			outcomes <- o
		}()
		o.value = f()
		o.returned = true
	}()
	o := <-outcomes
	switch {
	case o.panicked != nil:
		panic(o.panicked)
	case !o.returned:
		runtime.Goexit()
	}
	return o.value
}
