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

	"github.com/latchkey-dev/latchkey/internal/metrics"
)

const (
	// issueTimeout bounds one TokenRequest, whoever waits for it.
	issueTimeout = 10 * time.Second
	// retryFirst and retryMost bound the wait after a TokenRequest that failed: it doubles with
	// every failure.
	retryFirst, retryMost = 5 * time.Second, time.Minute
	// youngToken is how long after it was issued a token is not replaced because of a 401: a server
	// that takes no token at all must not cause a TokenRequest per request.
	youngToken = 10 * time.Second
	// requestsAtOnce is how many TokenRequests are under way at the same time: after a key rotation
	// every ServiceAccount wants a new token in the same instant.
	requestsAtOnce = 50
	// expiryMargin is how long before its end a token counts as expired, for requests take a while
	// to arrive.
	expiryMargin = 10 * time.Second
)

// tokenID names a token. Audiences and lifetime are the same for all tokens of a resolver.
type tokenID struct {
	serviceAccount types.NamespacedName
	uid            types.UID
}

// issued is a token as the API server gave it. It never changes.
type issued struct {
	value secret
	at    time.Time     // when we asked for it
	life  time.Duration // zero if it is not known to end
	renew time.Duration // after what time a better one is wanted
}

// age is how long ago the token was asked for: by the wall clock, or by the monotonic one, which
// stands still while a machine sleeps but is never set back, whichever says more.
func (i *issued) age(now time.Time) time.Duration {
	return max(now.Sub(i.at), now.Round(0).Sub(i.at.Round(0)))
}

// valid reports whether the token may be sent at now.
func (i *issued) valid(now time.Time) bool {
	return i != nil && (i.life == 0 || i.age(now) < i.life-expiryMargin)
}

// expires is when the token ends, zero if that is not known.
func (i *issued) expires() time.Time {
	if i == nil || i.life == 0 {
		return time.Time{}
	}
	return i.at.Add(i.life)
}

// tokens shares tokens between the extensions that name the same ServiceAccount.
type tokens struct {
	issue func(context.Context, tokenID) (issued, error)
	turns *semaphore.Weighted // of TokenRequests; nil for as many as there are

	mu   sync.Mutex
	byID map[tokenID]*token // guarded by mu; holds exactly the tokens with users
}

func (t *tokens) open(id tokenID) Credential {
	t.mu.Lock()
	defer t.mu.Unlock()
	shared, ok := t.byID[id]
	if !ok {
		ctx, cancel := context.WithCancel(context.Background())
		shared = &token{id: id, issue: t.issueInTurn, ctx: ctx, cancel: cancel}
		if t.byID == nil {
			t.byID = map[tokenID]*token{}
		}
		t.byID[id] = shared
	}
	shared.users++
	return &sharedToken{token: shared, all: t}
}

// issueInTurn waits for its turn first.
func (t *tokens) issueInTurn(ctx context.Context, id tokenID) (issued, error) {
	if t.turns != nil {
		if err := t.turns.Acquire(ctx, 1); err != nil {
			return issued{}, errors.Wrap(err, "waiting to request a token")
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

// token is the token of one ServiceAccount, renewed when it is used near its end.
type token struct {
	id    tokenID
	issue func(context.Context, tokenID) (issued, error)
	users int // guarded by tokens.mu

	ctx    context.Context // of the renewals: no caller can cancel them, the last user's Close does
	cancel context.CancelFunc

	flight  singleflight.Group
	current atomic.Pointer[issued]
	failed  atomic.Pointer[failure] // of the last TokenRequest, nil if it succeeded
}

// failure is a TokenRequest that failed. It never changes.
type failure struct {
	err   error
	count int       // in a row
	retry time.Time // before which requests do not cause another; a connect does
}

// afterFailure is the failure that follows last, which may be nil. jitter in [0,1) spreads the next
// attempts.
func afterFailure(last *failure, err error, now time.Time, jitter float64) *failure {
	next := &failure{err: err, count: 1}
	if last != nil {
		next.count = last.count + 1
	}
	wait := min(retryFirst<<min(next.count-1, 10), retryMost)
	next.retry = now.Add(time.Duration(float64(wait) * (1 - jitter/2)))
	return next
}

// get returns a valid token, from memory while it is fresh. Unless insist, it fails without a
// TokenRequest while the next one is not due.
func (t *token) get(ctx context.Context, insist bool) (*issued, error) {
	now := time.Now()
	have, failed := t.current.Load(), t.failed.Load()
	due := failed == nil || !now.Before(failed.retry)
	switch valid := have.valid(now); {
	case valid && (have.age(now) < have.renew || !due):
		return have, nil
	case valid:
		t.renew(have)
		return have, nil // good until it expires, and nobody waits for the renewal
	case !due && !insist:
		return nil, t.none(have, failed.err)
	}
	return t.await(ctx, have)
}

// refused returns a token to try once more after the API server refused one with a 401, nil if
// there is none: one that was renewed since, or a new one. Whoever is refused while a new one is
// under way waits for it.
func (t *token) refused(ctx context.Context, used *issued) *issued {
	now := time.Now()
	switch have, failed := t.current.Load(), t.failed.Load(); {
	case have != used && have.valid(now):
		return have
	case used.age(now) < youngToken, failed != nil && now.Before(failed.retry):
		return nil
	}
	fresh, err := t.await(ctx, used)
	if err != nil || fresh == used { // a flight that others began may bring what we have
		return nil
	}
	return fresh
}

// await waits for a token that is newer than stale.
func (t *token) await(ctx context.Context, stale *issued) (*issued, error) {
	select {
	case result := <-t.renew(stale):
		if result.Err != nil {
			return nil, t.none(stale, result.Err)
		}
		return result.Val.(*issued), nil
	case <-ctx.Done():
		return nil, t.none(stale, errors.Wrap(context.Cause(ctx), "waiting for a token"))
	}
}

// renew sends a TokenRequest, unless one is under way or a token newer than stale has come
// meanwhile.
func (t *token) renew(stale *issued) <-chan singleflight.Result {
	return t.flight.DoChan("", func() (any, error) {
		if have := t.current.Load(); have != stale && have.valid(time.Now()) {
			return have, nil
		}
		ctx, cancel := context.WithTimeout(t.ctx, issueTimeout)
		defer cancel()
		fresh, err := t.issue(ctx, t.id)
		metrics.TokenRequests.WithLabelValues(resultOf(err)).Inc()
		if err != nil {
			t.failed.Store(afterFailure(t.failed.Load(), err, time.Now(), rand.Float64()))
			return nil, err
		}
		t.current.Store(&fresh)
		t.failed.Store(nil)
		if t.ctx.Err() != nil {
			t.current.Store(nil) // the last user closed it meanwhile
		}
		return &fresh, nil
	})
}

// none is the error of a request for which there is no token.
func (t *token) none(last *issued, cause error) error {
	return &NoTokenError{ServiceAccount: t.id.serviceAccount, Expired: last.expires(), Cause: cause}
}

// resultOf is what metrics call the outcome of a TokenRequest.
func resultOf(err error) string {
	switch {
	case err == nil:
		return "Issued"
	case errors.Is(err, ErrServiceAccountNotFound):
		return "ServiceAccountNotFound"
	case errors.Is(err, ErrTokenRequestFailed):
		return "TokenRequestFailed"
	default:
		return "Unreachable"
	}
}
