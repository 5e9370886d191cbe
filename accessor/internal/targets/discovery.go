package targets

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/singleflight"
)

const (
	// followerTimeout is how long a member waits for the discovery of another one, whose credential
	// may hang, before it asks itself. A member that has less than three times as much waits for a
	// third of its time.
	followerTimeout = time.Second
	// aloneInterval is the least time between the beginnings of such discoveries at one target: a
	// server that is slow for everyone does not get one from each member.
	aloneInterval = 100 * time.Millisecond
)

// sharedDiscovery is how the members of a target discover together: all kinds, or those of one
// group. The zero value is ready to use.
type sharedDiscovery struct {
	flight singleflight.Group

	mu        sync.Mutex
	nextAlone time.Time     // guarded by mu; when the next member may ask alone
	published chan struct{} // guarded by mu; closed at the next success; nil if no member waits
}

// publish frees all members that wait.
func (s *sharedDiscovery) publish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.published != nil {
		close(s.published)
		s.published = nil
	}
}

// success returns the channel that is closed at the next success.
func (s *sharedDiscovery) success() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.published == nil {
		s.published = make(chan struct{})
	}
	return s.published
}

// turn returns after which time a member may ask alone. Each call takes the next turn.
func (s *sharedDiscovery) turn(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nextAlone.Before(now) {
		s.nextAlone = now
	}
	wait := s.nextAlone.Sub(now)
	s.nextAlone = s.nextAlone.Add(aloneInterval)
	return wait
}

// discover calls ask, which asks the server with the caller's own credential, in one flight with
// other callers. A caller asks alone if the flight failed with another member's credential, or if
// it takes longer than followerTimeout. The first success frees all: latest returns it, and ask has
// called publish. Later calls do not join a flight that has published: what they got would be older
// than they are. That a discovery is too much is an answer, too. discover returns when ctx is done;
// what it has begun goes on for the others.
func (s *sharedDiscovery) discover(ctx context.Context, ask func(publish func()) (*kinds, error),
	latest func() *kinds) (
	*kinds, error) {
	start := time.Now()
	success := s.success() // before the flight, so that none is missed
	askAlone := func() <-chan singleflight.Result {
		return new(singleflight.Group).DoChan("", func() (any, error) { return ask(s.publish) })
	}
	var leads atomic.Bool
	flight := s.flight.DoChan("", func() (any, error) {
		leads.Store(true)
		return ask(func() {
			s.flight.Forget("") // which is this one
			s.publish()
		})
	})
	var alone <-chan singleflight.Result
	patience := followerTimeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, deadline.Sub(start)/3)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	hasTurn := false
	for {
		select {
		case result := <-flight:
			if result.Err == nil || leads.Load() || isTooMuch(result.Err) {
				return found(result)
			}
			if flight = nil; alone == nil {
				alone = askAlone()
			}
		case result := <-alone:
			if result.Err == nil || flight == nil || isTooMuch(result.Err) {
				return found(result)
			}
			alone = nil // ours failed; the other may succeed
		case <-success:
			if latest := latest(); latest != nil && !latest.at.Before(start) {
				return latest, nil
			}
			success = s.success()
		case now := <-timer.C:
			switch {
			case leads.Load() || alone != nil:
			case !hasTurn:
				hasTurn = true
				timer.Reset(s.turn(now))
			default:
				alone = askAlone()
			}
		case <-ctx.Done():
			return nil, errors.Wrap(context.Cause(ctx), "waiting for discovery")
		}
	}
}

func found(result singleflight.Result) (*kinds, error) {
	if result.Err != nil {
		return nil, result.Err
	}
	return result.Val.(*kinds), nil
}
