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
	// issueRetry is how long a token that could not be renewed is used on before the next attempt.
	issueRetry = 10 * time.Second
)

// tokenID names a token. Audiences and lifetime are the same for all tokens of a resolver.
type tokenID struct {
	serviceAccount types.NamespacedName
	uid            types.UID
}

// issued is a token as the API server gave it. It never changes.
type issued struct {
	value   secret
	at      time.Time // when we asked for it
	expires time.Time
	renew   time.Time // from when on a better one is wanted
}

// tokens shares tokens between the extensions that name the same ServiceAccount.
type tokens struct {
	issue func(context.Context, tokenID) (issued, error)

	mu   sync.Mutex
	byID map[tokenID]*token // guarded by mu; holds exactly the tokens with users
}

func (t *tokens) open(id tokenID) Credential {
	t.mu.Lock()
	defer t.mu.Unlock()
	shared, ok := t.byID[id]
	if !ok {
		ctx, cancel := context.WithCancel(context.Background())
		shared = &token{id: id, issue: t.issue, ctx: ctx, cancel: cancel}
		if t.byID == nil {
			t.byID = map[tokenID]*token{}
		}
		t.byID[id] = shared
	}
	shared.users++
	return &sharedToken{token: shared, all: t}
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
	retry   atomic.Pointer[time.Time] // before which a failed renewal is not repeated
}

// get returns a valid token, from memory while it is fresh.
func (t *token) get(ctx context.Context) (*issued, error) {
	now := time.Now()
	have := t.current.Load()
	valid := have != nil && now.Before(have.expires)
	if retry := t.retry.Load(); valid && (now.Before(have.renew) || retry != nil && now.Before(*retry)) {
		return have, nil
	}
	flight := t.flight.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(t.ctx, issueTimeout)
		defer cancel()
		fresh, err := t.issue(ctx, t.id)
		metrics.TokenRequests.WithLabelValues(resultOf(err)).Inc()
		if err != nil {
			retry := time.Now().Add(issueRetry)
			t.retry.Store(&retry)
			return nil, err
		}
		t.current.Store(&fresh)
		return &fresh, nil
	})
	if valid {
		return have, nil // good until it expires, and nobody waits for the renewal
	}
	select {
	case result := <-flight:
		if result.Err != nil {
			return nil, result.Err
		}
		return result.Val.(*issued), nil
	case <-ctx.Done():
		return nil, errors.Wrapf(context.Cause(ctx), "waiting for a token of serviceaccount %s", t.id.serviceAccount)
	}
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
	_, err := s.get(ctx)
	return err
}

func (s *sharedToken) get(ctx context.Context) (secret, error) {
	if s.closed.Load() {
		return nil, errClosed
	}
	have, err := s.token.get(ctx)
	if err != nil {
		return nil, err
	}
	return have.value, nil
}

func (s *sharedToken) RoundTripper(next http.RoundTripper) http.RoundTripper {
	return &bearer{token: s.get, next: next}
}

func (s *sharedToken) Expires() time.Time {
	if have := s.token.current.Load(); have != nil {
		return have.expires
	}
	return time.Time{}
}

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
	// The pool of connects bounds us; the host operator's own limit must not queue tenants behind each other.
	config.RateLimiter, config.QPS = nil, -1
	core, err := corev1client.NewForConfigAndClient(config, host.GetHTTPClient())
	if err != nil {
		return nil, errors.Wrap(err, "preparing TokenRequests")
	}
	return &tokenIssuer{client: core.RESTClient(), audiences: audiences, lifetime: lifetime}, nil
}

// issue asks for one token. It reads the answer as a stream because client-go logs the bodies of all others.
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
		return issued{}, errors.Wrapf(classify(err), "requesting a token of serviceaccount %s", id.serviceAccount)
	}
	defer body.Close()
	var answer authenticationv1.TokenRequest
	if err := json.NewDecoder(body).Decode(&answer); err != nil || answer.Status.Token == "" {
		// Nothing of the answer goes into the error: it may hold a token.
		return issued{}, errors.Wrapf(ErrTokenRequestFailed, "the answer for serviceaccount %s holds no token", id.serviceAccount)
	}
	life := answer.Status.ExpirationTimestamp.Sub(asked)
	if life <= 0 {
		return issued{}, errors.Wrapf(ErrTokenRequestFailed, "the token of serviceaccount %s has expired already: do the clocks agree?", id.serviceAccount)
	}
	return issued{
		value:   newSecret(answer.Status.Token),
		at:      asked,
		expires: asked.Add(life),
		renew:   asked.Add(renewAfter(life, rand.Float64())),
	}, nil
}

// renewAfter is when to renew a token that lives so long: at 70 to 80 % of its life, so that tokens that were
// issued together are not renewed together.
func renewAfter(life time.Duration, jitter float64) time.Duration {
	return time.Duration(float64(life) * (0.8 - jitter/10))
}

// classify marks why a TokenRequest failed. An error without a status, that is, without an answer, stays as it is.
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
