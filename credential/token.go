package credential

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

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

// sharedToken is one extension's hold on a token.
type sharedToken struct {
	token  *token
	all    *tokens
	closed atomic.Bool
}

var _ Credential = (*sharedToken)(nil)

func (*sharedToken) sealed() {}

func (s *sharedToken) Prepare(ctx context.Context) error {
	if s.closed.Load() {
		return errClosed
	}
	_, err := s.token.get(ctx, true)
	return err
}

// get implements tokenSource.
func (s *sharedToken) get(ctx context.Context) (*issued, error) {
	if s.closed.Load() {
		return nil, errClosed
	}
	return s.token.get(ctx, false)
}

// refused implements tokenSource.
func (s *sharedToken) refused(ctx context.Context, used *issued) *issued {
	if s.closed.Load() {
		return nil
	}
	return s.token.refused(ctx, used)
}

func (s *sharedToken) RoundTripper(next http.RoundTripper) http.RoundTripper {
	return &bearer{tokens: s, next: next}
}

func (s *sharedToken) TransportRequirement() TransportRequirement { return TransportRequirement{} }
func (s *sharedToken) Expires() time.Time                         { return s.token.current.Load().expires() }

func (s *sharedToken) Discard(before time.Time) {
	if have := s.token.current.Load(); have != nil && have.at.Before(before) {
		s.token.current.CompareAndSwap(have, nil)
	}
}

func (s *sharedToken) Close() {
	if s.closed.CompareAndSwap(false, true) {
		s.all.close(s.token)
	}
}

// tokenIssuer asks the API server of the extensions for tokens, as the host operator.
type tokenIssuer struct {
	client    rest.Interface
	audiences []string
	lifetime  time.Duration
}

func newTokenIssuer(host cluster.Cluster, audiences []string, lifetime time.Duration) (*tokenIssuer, error) {
	config := rest.CopyConfig(host.GetConfig())
	// We bound ourselves; the host operator's own limit must not queue tenants behind each other.
	config.RateLimiter, config.QPS = nil, -1
	core, err := corev1client.NewForConfigAndClient(config, host.GetHTTPClient())
	if err != nil {
		return nil, errors.Wrap(err, "preparing TokenRequests")
	}
	return &tokenIssuer{client: core.RESTClient(), audiences: audiences, lifetime: lifetime}, nil
}

// issue asks for one token. It reads the answer as a stream because client-go logs the bodies of
// all others.
func (i *tokenIssuer) issue(ctx context.Context, id tokenID) (issued, error) {
	seconds := int64(i.lifetime / time.Second)
	asked := time.Now()
	body, err := i.client.Post().
		Namespace(id.serviceAccount.Namespace).
		Resource("serviceaccounts").
		Name(id.serviceAccount.Name).
		SubResource("token").
		SetHeader("Accept", "application/json").
		Body(&authenticationv1.TokenRequest{
			// The API server refuses with 409 when the ServiceAccount has another UID by now.
			ObjectMeta: metav1.ObjectMeta{UID: id.uid},
			Spec:       authenticationv1.TokenRequestSpec{Audiences: i.audiences, ExpirationSeconds: &seconds},
		}).
		Stream(ctx)
	if err != nil {
		what := "requesting a token"
		if apierrors.IsForbidden(err) {
			what = "the host operator needs create on serviceaccounts/token (ClusterRole latchkey-operator in " +
				"config/rbac, or config/rbac-examples/tokens-by-name.yaml): " + what
		}
		return issued{}, errors.Wrapf(classify(err), "%s of serviceaccount %s", what, id.serviceAccount)
	}
	defer body.Close()
	var answer authenticationv1.TokenRequest
	if err := json.NewDecoder(body).Decode(&answer); err != nil || answer.Status.Token == "" {
		// Nothing of the answer goes into the error: it may hold a token.
		return issued{},
			errors.Wrapf(ErrTokenRequestFailed, "the answer for serviceaccount %s holds no token", id.serviceAccount)
	}
	life := lifeOf(&answer, asked)
	if life <= expiryMargin {
		return issued{},
			errors.Wrapf(ErrTokenRequestFailed,
				"the token of serviceaccount %s expires at %s, which is over by our clock: do the clocks agree?",
				id.serviceAccount, answer.Status.ExpirationTimestamp.UTC().Format(time.RFC3339))
	}
	return issued{value: newSecret(answer.Status.Token), at: asked, life: life,
		renew: renewAfter(life, rand.Float64())}, nil
}

// lifeOf is how long a token lives from when it was asked for: as the server's answer says, by the
// earlier of the end it names and the time it grants, which is right also where our clock is behind
// the server's.
func lifeOf(answer *authenticationv1.TokenRequest, asked time.Time) time.Duration {
	life := answer.Status.ExpirationTimestamp.Sub(asked)
	if granted := answer.Spec.ExpirationSeconds; granted != nil && *granted > 0 {
		life = min(life, time.Duration(*granted)*time.Second)
	}
	return life
}

// renewAfter is when to renew a token that lives so long: at 60 to 80 % of its life, so that tokens
// that were issued together are not renewed together.
func renewAfter(life time.Duration, jitter float64) time.Duration {
	return time.Duration(float64(life) * (0.8 - jitter/5))
}

// classify marks why a TokenRequest failed. An error without a status, that is, without an answer,
// stays as it is.
func classify(err error) error {
	var status apierrors.APIStatus
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return &joined{kind: ErrServiceAccountNotFound, cause: err}
	case errors.As(err, &status):
		return &joined{kind: ErrTokenRequestFailed, cause: err}
	default:
		return err
	}
}
