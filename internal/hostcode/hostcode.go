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

// IsPanic reports whether err, as Call returned it, means that the function itself panicked. An
// error that the function returned may have a PanicError in its chain, of another call.
func IsPanic(err error) bool {
	_, panicked := err.(*PanicError) //nolint:errorlint // see above
	return panicked
}

// Caller calls functions of one part of the host operator.
type Caller struct {
	// Logger returns the logger of a panic, with what the function was about. It is called after a
	// panic only.
	Logger  func() logr.Logger
	Metrics *metrics.Cache // counts panics; may be nil
}

// Call calls f and returns its error. If f panics, Call counts and logs the panic with its stack,
// and returns a PanicError. what names f.
func (c Caller) Call(what string, f func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			c.Metrics.HandlerPanicked()
			c.Logger().Error(errors.Errorf("%v", cause), "A function of the host operator panicked", "function", what,
				"stack", string(debug.Stack()))
			err = &PanicError{What: what}
		}
	}()
	return f()
}
