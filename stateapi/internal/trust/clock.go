package trust

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/internal/certs"
)

// Clock compares the local clock with that of an API server, by the Date of its answers. The zero
// value knows nothing. Its methods may be called from any goroutine.
type Clock struct {
	ahead atomic.Int64 // of the API server, in nanoseconds
}

// RoundTripper returns a RoundTripper by whose answers the Clock goes.
func (c *Clock) RoundTripper(next http.RoundTripper) http.RoundTripper {
	return clocked{next, c}
}

type clocked struct {
	next  http.RoundTripper
	clock *Clock
}

// RoundTrip implements http.RoundTripper.
func (c clocked) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.next.RoundTrip(req)
	if err == nil {
		if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			c.clock.ahead.Store(int64(time.Now().Round(0).Sub(date)))
		}
	}
	return resp, err
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (c clocked) WrappedRoundTripper() http.RoundTripper { return c.next }

// check returns an error if the local clock is wrong: an authority that this replica makes would
// not be valid for others, and one that is may look expired.
func (c *Clock) check() error {
	if c == nil {
		return nil
	}
	ahead := time.Duration(c.ahead.Load())
	if ahead.Abs() <= certs.ClockSkew {
		return nil
	}
	return errors.Errorf("the clock of this replica differs by %s from that of the API server, so it changes nothing in "+
		"the Secret: set the clock of its node", ahead.Abs().Round(time.Second))
}
