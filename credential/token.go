package credential

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/tracing"
)

const (
	// issueTimeout limits one TokenRequest, for all of its waiters.
	issueTimeout = 10 * time.Second
	// retryFirst and retryMost are the limits of the wait after a failed TokenRequest. The wait
	// doubles with every failure.
	retryFirst, retryMost = 5 * time.Second, time.Minute
	// youngToken is the age below which a 401 does not cause a replacement of a token: a server
	// that accepts no token at all must not cause a TokenRequest per request.
	youngToken = 10 * time.Second
	// requestsAtOnce is the maximum number of concurrent TokenRequests: after a key rotation every
	// ServiceAccount needs a new token at the same time.
	requestsAtOnce = 50
	// expiryMargin is the time before its expiry from which a token counts as expired, because
	// requests take some time to arrive.
	expiryMargin = 10 * time.Second
)

// tokenID identifies a token. All tokens of a resolver have the same lifetime.
type tokenID struct {
	serviceAccount types.NamespacedName
	uid            types.UID

	// Of a token for a remote API server only:

	target   string // identifies the API server
	audience string // of the token
	owner    string // whom the audience belongs to by the host operator's table; empty if it is derived
}

// issuedToken is a token as the API server issued it. An issuedToken never changes.
type issuedToken struct {
	value       secret
	requestedAt time.Time     // by the local clock
	life        time.Duration // zero if the expiry is unknown
	renew       time.Duration // age at which to request a newer token
}

// age returns the time since the token was requested: the larger value of the wall clock and the
// monotonic clock. The monotonic clock stops while a machine sleeps, but is never set back, as the
// wall clock can be.
func (i *issuedToken) age(now time.Time) time.Duration {
	return max(now.Sub(i.requestedAt), now.Round(0).Sub(i.requestedAt.Round(0)))
}

// valid reports whether the token may be sent at the time now.
func (i *issuedToken) valid(now time.Time) bool {
	return i != nil && (i.life == 0 || i.age(now) < i.life-expiryMargin)
}

// expires returns the time at which the token expires, zero if unknown.
func (i *issuedToken) expires() time.Time {
	if i == nil || i.life == 0 {
		return time.Time{}
	}
	return i.requestedAt.Add(i.life)
}

// tokens shares tokens between the extensions that name the same ServiceAccount.
type tokens struct {
	issue  func(context.Context, tokenID) (issuedToken, error)
	turns  *semaphore.Weighted // limits concurrent TokenRequests; nil means no limit
	counts *metrics.Cache
	tracer *tracing.Tracer
	// renewed, if not nil, is called after a token took the place of a valid one, and must not block.
	// Tokens are then renewed by the clock, and not by requests only.
	renewed func(tokenID)

	mu   sync.Mutex
	byID map[tokenID]*token // guarded by mu; only tokens with users
}

func (t *tokens) open(id tokenID) identity.Credential {
	return &sharedToken{token: t.acquire(id), all: t}
}

// acquire returns the token with that ID, for one more user. The caller must close it.
func (t *tokens) acquire(id tokenID) *token {
	t.mu.Lock()
	defer t.mu.Unlock()
	shared, ok := t.byID[id]
	if !ok {
		ctx, cancel := context.WithCancel(context.Background())
		shared = &token{
			id:      id,
			issue:   t.issueInTurn,
			renewed: t.renewed,
			counts:  t.counts,
			tracer:  t.tracer,
			ctx:     ctx,
			cancel:  cancel,
		}
		if t.byID == nil {
			t.byID = map[tokenID]*token{}
		}
		t.byID[id] = shared
	}
	shared.users++
	return shared
}

// version returns how often a token took the place of a valid one.
func (t *tokens) version(id tokenID) int64 {
	t.mu.Lock()
	shared := t.byID[id]
	t.mu.Unlock()
	if shared == nil {
		return 0
	}
	return shared.version.Load()
}

// issueInTurn calls issue after it has acquired turns.
func (t *tokens) issueInTurn(ctx context.Context, id tokenID) (issuedToken, error) {
	if t.turns != nil {
		if err := t.turns.Acquire(ctx, 1); err != nil {
			return issuedToken{}, errors.Wrap(err, "waiting to request a token")
		}
		defer t.turns.Release(1)
	}
	return t.issue(ctx, id)
}

func (t *tokens) close(shared *token) {
	t.mu.Lock()
	shared.users--
	last := shared.users == 0
	if last {
		delete(t.byID, shared.id)
	}
	t.mu.Unlock()
	if last {
		shared.cancel()
		shared.current.Store(nil)
	}
}

// token is the token of one ServiceAccount. A request renews the token when its expiry is near.
type token struct {
	id      tokenID
	issue   func(context.Context, tokenID) (issuedToken, error)
	renewed func(tokenID)
	counts  *metrics.Cache
	tracer  *tracing.Tracer
	users   int // guarded by tokens.mu

	ctx    context.Context // context of renewals: no single caller can cancel them, only the last user's Close
	cancel context.CancelFunc

	flight      singleflight.Group
	version     atomic.Int64 // see tokens.version
	timer       *time.Timer  // of the next renewal; used by the flight only
	current     atomic.Pointer[issuedToken]
	lastFailure atomic.Pointer[failure] // of the last TokenRequest, nil after a success
}

// failure describes a failed TokenRequest. A failure never changes.
type failure struct {
	err   error
	count int       // consecutive failures
	retry time.Time // until then only a connect causes another TokenRequest
}

// afterFailure returns the failure that follows last, which may be nil. jitter in [0,1) spreads the
// next attempts.
func afterFailure(last *failure, err error, now time.Time, jitter float64) *failure {
	next := &failure{err: err, count: 1}
	if last != nil {
		next.count = last.count + 1
	}
	wait := min(retryFirst<<min(next.count-1, 10), retryMost)
	next.retry = now.Add(time.Duration(float64(wait) * (1 - jitter/2)))
	if asked, _ := connstate.ThrottledFor(err); asked > 0 { // the API server says when
		asked = min(asked, retryMost)
		at := now.Add(asked + time.Duration(float64(asked)*jitter/5))
		if next.count == 1 || at.After(next.retry) { // a server that refuses again and again is asked less and less
			next.retry = at
		}
	}
	return next
}

// get returns a valid token, from memory while the token is fresh. Without a valid token, and
// before the next TokenRequest is due, get returns an error at once, unless insist is set.
func (t *token) get(ctx context.Context, insist bool) (*issuedToken, error) {
	now := time.Now()
	current, failed := t.current.Load(), t.lastFailure.Load()
	due := failed == nil || !now.Before(failed.retry)
	switch valid := current.valid(now); {
	case valid && (current.age(now) < current.renew || !due):
		return current, nil
	case valid:
		t.renew(context.Background(), current) // its span is its own: the caller does not wait
		return current, nil                    // the token is still valid, so no caller waits for the renewal
	case !due && !insist:
		return nil, t.noTokenError(current, failed.err)
	}
	return t.await(ctx, current)
}

// freshen has the token renewed if that is due. It does not wait.
func (t *token) freshen(now time.Time) {
	current, failed := t.current.Load(), t.lastFailure.Load()
	fresh := current.valid(now) && current.age(now) < current.renew
	if !fresh && (failed == nil || !now.Before(failed.retry)) {
		t.renew(context.Background(), current) // its span is its own
	}
}

// replacement returns a token for one more attempt after the API server refused used with a 401: a
// token that was renewed since then, or a new one. The result is nil if there is none. While a
// TokenRequest is in progress, callers wait for its result.
func (t *token) replacement(ctx context.Context, used *issuedToken) *issuedToken {
	now := time.Now()
	switch current, failed := t.current.Load(), t.lastFailure.Load(); {
	case current != used && current.valid(now):
		return current
	case used.age(now) < youngToken, failed != nil && now.Before(failed.retry):
		return nil
	}
	fresh, err := t.await(ctx, used)
	if err != nil || fresh == used { // a renewal that another caller started may return the same token
		return nil
	}
	return fresh
}

// await returns a token that is newer than stale. await waits for a TokenRequest, until ctx is
// done.
func (t *token) await(ctx context.Context, stale *issuedToken) (*issuedToken, error) {
	select {
	case result := <-t.renew(ctx, stale):
		if result.Err != nil {
			return nil, t.noTokenError(stale, result.Err)
		}
		return result.Val.(*issuedToken), nil
	case <-ctx.Done():
		return nil, t.noTokenError(stale, errors.Wrap(context.Cause(ctx), "waiting for a token"))
	}
}

// renew sends a TokenRequest, unless one is in progress or the current token is already newer than
// stale. Of ctx, only the span is used.
func (t *token) renew(ctx context.Context, stale *issuedToken) <-chan singleflight.Result {
	return t.flight.DoChan("", func() (any, error) {
		if current := t.current.Load(); current != stale && current.valid(time.Now()) {
			return current, nil
		}
		ctx, cancel := context.WithTimeout(tracing.Detach(t.ctx, ctx), issueTimeout)
		defer cancel()
		ctx, span := t.tracer.Start(ctx, tracing.TokenRequest)
		if span.IsRecording() {
			span.SetAttributes(tracing.ServiceAccount.String(t.id.serviceAccount.String()))
		}
		fresh, err := t.issue(ctx, t.id)
		tracing.End(span, resultOf(err), err != nil)
		t.counts.RequestedToken(resultOf(err))
		if err != nil {
			failed := afterFailure(t.lastFailure.Load(), err, time.Now(), rand.Float64())
			t.lastFailure.Store(failed)
			t.renewIn(time.Until(failed.retry))
			return nil, err
		}
		t.current.Store(&fresh)
		t.lastFailure.Store(nil)
		if t.ctx.Err() != nil {
			t.current.Store(nil) // the last user called Close in the meantime
		}
		t.renewIn(fresh.renew)
		if t.renewed != nil && stale.valid(time.Now()) {
			t.version.Add(1)
			t.renewed(t.id)
		}
		return &fresh, nil
	})
}

// renewIn has the token renewed after a while, also if there is no request.
func (t *token) renewIn(after time.Duration) {
	switch {
	case t.renewed == nil || t.ctx.Err() != nil:
	case t.timer == nil:
		t.timer = time.AfterFunc(after, func() {
			if t.ctx.Err() == nil {
				t.freshen(time.Now())
			}
		})
	default:
		t.timer.Reset(after)
	}
}

// noTokenError returns the error of a request for which there is no valid token.
func (t *token) noTokenError(last *issuedToken, cause error) error {
	return &NoTokenError{ServiceAccount: t.id.serviceAccount, Expired: last.expires(), Err: cause}
}

// resultOf returns the metric label for the result of a TokenRequest.
func resultOf(err error) string {
	switch {
	case err == nil:
		return "Issued"
	case errors.Is(err, identity.ErrServiceAccountNotFound):
		return "ServiceAccountNotFound"
	case errors.Is(err, identity.ErrTokenRequestFailed):
		return "TokenRequestFailed"
	default:
		return "Unreachable"
	}
}
