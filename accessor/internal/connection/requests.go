package connection

import (
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// Requests are the requests of one extension, over all its connections, from the first question of
// a connect on. The methods may be called from any goroutine. A nil Requests counts and refuses
// nothing.
type Requests struct {
	underWay atomic.Int64
	refusal  atomic.Pointer[refusal] // nil while requests start
}

// refusal is why no request starts any more.
type refusal struct {
	reason   *connstate.NotConnectedError
	answered chan struct{} // closed when no request is under way
	close    func()        // closes answered, once
}

// begin counts a request, or returns why it must not start. The caller calls end in both cases.
func (r *Requests) begin() error {
	if r == nil {
		return nil
	}
	r.underWay.Add(1) // before the look at refusal, so that a request is refused or counted
	return r.Refused()
}

func (r *Requests) end() {
	if r != nil && r.underWay.Add(-1) == 0 {
		if refused := r.refusal.Load(); refused != nil {
			refused.close()
		}
	}
}

// Refuse makes requests that have not started fail with the reason. Those under way go on: answered
// is closed when each has the header of its answer, or an error. The bodies of answers, such as
// watches, are not waited for, except for the first bytes of one with status 403, where permissions
// are on record. Refuse must be called once. A nil Requests counts none.
func (r *Requests) Refuse(reason *connstate.NotConnectedError) (answered <-chan struct{}) {
	if r == nil {
		none := make(chan struct{})
		close(none)
		return none
	}
	refused := &refusal{reason: reason, answered: make(chan struct{})}
	refused.close = sync.OnceFunc(func() { close(refused.answered) })
	r.refusal.Store(refused)
	if r.underWay.Load() == 0 {
		refused.close()
	}
	return refused.answered
}

// Refused returns why no request starts any more, nil while they do.
func (r *Requests) Refused() error {
	if r == nil {
		return nil
	}
	if refused := r.refusal.Load(); refused != nil {
		return refused.reason
	}
	return nil
}

// requestsRoundTripper counts requests that do not pass an admittingRoundTripper.
type requestsRoundTripper struct {
	requests *Requests
	next     http.RoundTripper
}

func (t requestsRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	defer t.requests.end()
	if err := t.requests.begin(); err != nil {
		return failingRoundTripper{err}.RoundTrip(req)
	}
	return t.next.RoundTrip(req)
}
