package accessor

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// denialRetryInterval is how long a connect waits before it asks again after a denial.
const denialRetryInterval = 500 * time.Millisecond

// attempt is a connect, probe or verify: the I/O between two decisions of the machine. It runs in
// the pool.
type attempt struct {
	lifecycle.CreateAttempt
	accessor   *identityAccessor
	ctx        context.Context // ends when the machine cancels the attempt
	cancel     context.CancelFunc
	begun      time.Time
	credential *boundCredential
	membership *targets.Membership
	conn       *connection // there was when the attempt was created; nil for a connect
}

// newAttemptLocked makes what CreateAttempt asks for.
func (a *identityAccessor) newAttemptLocked(e lifecycle.CreateAttempt) *attempt {
	ctx, cancel := context.WithCancel(a.set.life)
	return &attempt{CreateAttempt: e, accessor: a, ctx: ctx, cancel: cancel, begun: time.Now(),
		credential: a.credentials.get(e.Credential),
		membership: a.membership, conn: a.published.Load().conn}
}

// submit has the pool run the attempt.
func (t *attempt) submit() {
	run := map[lifecycle.AttemptKind]func() (lifecycle.AttemptFinished, *connection){
		lifecycle.Connect: t.connect, lifecycle.Probe: t.probe, lifecycle.Verify: t.verify,
	}[t.Kind]
	t.accessor.set.pool.Submit(t.membership.Host(), t.membership.Reachability, t.Urgent, func() {
		defer t.cancel()
		metrics.PoolWait.Observe(time.Since(t.begun).Seconds())
		if t.ctx.Err() != nil {
			return // cancelled while it waited for its turn
		}
		finished, conn := run()
		finished.Attempt = t.Attempt
		t.accessor.step(finished, brought{conn: conn})
	})
}

// connect obtains a credential and asks the API server whose it is. The connection that it makes is
// closed unless the machine begins it.
func (t *attempt) connect() (lifecycle.AttemptFinished, *connection) {
	begun := time.Now()
	defer func() {
		if t.ctx.Err() == nil {
			metrics.ConnectDuration.Observe(time.Since(begun).Seconds())
		}
	}()
	if err := t.prepare(); err != nil {
		return notSent(begun, err), nil
	}
	a := t.accessor
	asked, id := time.Now(), t.Attempt // the callbacks keep the ID and not the attempt, which has the first credential
	conn := newConnection(a.set.life, &a.set.owned, a.set.options, a.key, t.Epoch, t.membership.Target, t.credential,
		func() { a.stepAside(lifecycle.RequestUnauthorized{Attempt: id}) },
		func() { a.stepAside(lifecycle.AccessChanged{}) })
	answer := askWhileDenied(t.ctx, conn, a.set.options.HealthProbe.Timeout)
	conn.stated, conn.identity = answer.Identity, answer.Identity
	if conn.identity.UID == "" {
		conn.identity.UID = conn.resolved.UID
	}
	return lifecycle.AttemptFinished{Asked: asked, Answer: answer}, conn
}

// probe asks the API server whether it still states the same identity.
func (t *attempt) probe() (lifecycle.AttemptFinished, *connection) {
	asked := time.Now()
	answer := ask(t.ctx, t.conn, t.conn.httpClient, t.accessor.set.options.HealthProbe.Timeout)
	if t.ctx.Err() == nil {
		metrics.ProbeDuration.Observe(time.Since(asked).Seconds())
	}
	return lifecycle.AttemptFinished{Asked: asked, Answer: answer}, nil
}

// verify asks the API server whose a newer credential is.
func (t *attempt) verify() (lifecycle.AttemptFinished, *connection) {
	begun := time.Now()
	if err := t.prepare(); err != nil {
		return notSent(begun, err), nil
	}
	transport := userAgentRoundTripper{userAgent: t.conn.config.UserAgent,
		next: t.credential.roundTripper(t.membership.RoundTripper())}
	httpClient := &http.Client{Transport: transport, Timeout: t.accessor.set.options.HealthProbe.Timeout,
		CheckRedirect: neverRedirect}
	asked := time.Now()
	answer := ask(t.ctx, t.conn, httpClient, t.accessor.set.options.HealthProbe.Timeout)
	answer.OwnConnections = t.credential.transport != nil
	return lifecycle.AttemptFinished{Asked: asked, Answer: answer}, nil
}

// prepare obtains what requests with the credential need.
func (t *attempt) prepare() error {
	ctx, cancel := context.WithTimeout(t.ctx, t.accessor.set.options.Client.Timeout)
	defer cancel()
	return t.credential.cred.Prepare(ctx)
}

// notSent is the result of an attempt whose own credential failed.
func notSent(asked time.Time, err error) lifecycle.AttemptFinished {
	return lifecycle.AttemptFinished{Asked: asked,
		Answer: lifecycle.Answer{Verdict: healthprobe.Failing, Err: err, NotSent: reasonOf(err)}}
}

// ask probes once. A request that failed for want of a credential was never sent. The status of its
// error, if it has one, is not the answer of the server that was to be asked.
func ask(ctx context.Context, conn *connection, httpClient *http.Client, timeout time.Duration) lifecycle.Answer {
	config := conn.restConfig()
	config.RateLimiter, config.QPS = nil, -1 // a probe never waits behind the identity's own requests
	limited := *httpClient
	limited.Transport = untrusted.Limit(httpClient.Transport)
	got := healthprobe.Ask(ctx, config, &limited, timeout)
	answer := lifecycle.Answer{Verdict: got.Verdict, Identity: got.Identity, Err: got.Err}
	var none *credential.NoTokenError
	switch reason := reasonOf(got.Err); {
	case got.Err == nil:
	case reason != Unreachable, errors.As(got.Err, &none):
		answer.Verdict, answer.NotSent = healthprobe.Failing, reason
	case conn.resolved.UntrustedServer:
		conn.options.Logger.V(1).Info("Answer of an API server that a credential chose", "target", conn.config.Host,
			"error", got.Err.Error())
		answer.Err = statusOnly(got.Err)
	}
	if answer.Verdict == healthprobe.Denied && conn.resolved.Impersonated {
		answer.Err = errors.WithMessagef(answer.Err,
			"the host operator needs impersonate on serviceaccount %s (config/rbac-examples/impersonation.yaml)",
			conn.resolved.ServiceAccount)
	}
	return answer
}

// askWhileDenied asks again while the answer is Denied, because an API server in its first moments
// denies rightful requests. It takes no longer than timeout.
func askWhileDenied(ctx context.Context, conn *connection, timeout time.Duration) lifecycle.Answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		answer := ask(ctx, conn, conn.httpClient, timeout)
		if answer.Verdict != healthprobe.Denied {
			return answer
		}
		select {
		case <-ctx.Done():
			return answer
		case <-time.After(denialRetryInterval):
		}
	}
}

// statusOnly shows no more than the status of an answer: the writer of a kubeconfig may be after
// what others may not read at the server that it names. What failed without a status is shown as it
// is.
func statusOnly(err error) error {
	text, ok := untrusted.StatusText(err)
	if !ok {
		return err
	}
	return untrusted.Show(strings.TrimSpace("asking the API server who we are: it answered "+text), err)
}
