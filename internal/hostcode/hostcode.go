package hostcode

import (
	"runtime/debug"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/internal/metrics"
)

// PanicError is the error of a function that panicked.
type PanicError struct {
	What string // which function
}

// Error implements error.
func (e *PanicError) Error() string { return e.What + " panicked: see the host operator's log" }

// IsPanic reports whether a function that Call called has panicked.
func IsPanic(err error) bool { return errors.As(err, new(*PanicError)) }

// Caller calls functions of one part of the host operator.
type Caller struct {
	Logger  logr.Logger
	Metrics *metrics.Cache // counts panics; may be nil
}

// Call calls f and returns its error. If f panics, Call counts and logs the panic with the stack
// and the given keys and values, and returns a PanicError. what names f.
func (c Caller) Call(what string, f func() error, keysAndValues ...any) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			c.Metrics.HandlerPanicked()
			c.Logger.Error(errors.Errorf("%v", cause), "A function of the host operator panicked",
				append(keysAndValues, "function", what, "stack", string(debug.Stack()))...)
			err = &PanicError{What: what}
		}
	}()
	return f()
}
