package accessor

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/accessor/internal/workpool"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/tracing"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// attempt is a connect, probe or verify: the I/O between two decisions of the machine. Attempts run
// in the pool.
type attempt struct {
	lifecycle.CreateAttempt
	accessor   *identityAccessor
	ctx        context.Context // ends when the machine cancels the attempt
	cancel     context.CancelFunc
	createdAt  time.Time
	extension  connection.Extension
	credential *connection.Credential
	membership *targets.Membership
	conn       *connection.Connection // the connection at the time when the attempt was created; nil for a connect
}

// newAttemptLocked returns the attempt that CreateAttempt describes.
func (a *identityAccessor) newAttemptLocked(e lifecycle.CreateAttempt) *attempt {
	ctx, cancel := context.WithCancel(a.set.life)
	return &attempt{
		CreateAttempt: e,
		accessor:      a,
		ctx:           ctx,
		cancel:        cancel,
		createdAt:     time.Now(),
		extension: connection.Extension{
			Key:        a.key,
			UID:        a.object.GetUID(),
			Term:       a.term,
			TermReason: a.set.lifecycle.LeaseReason(),
			Requests:   a.requests,
		},
		credential: a.credentials.get(e.Credential),
		membership: a.membership,
		conn:       a.conn,
	}
}

// submit passes the attempt to the pool, which runs it.
func (t *attempt) submit() {
	run := t.connect
	switch t.Kind {
	case lifecycle.Probe:
		run = t.probe
	case lifecycle.Verify:
		run = t.verify
	}
	t.accessor.set.attempts.Submit(t.membership.Host(), t.membership.Reachability, t.priority(), func() {
		defer t.cancel()
		waited := time.Since(t.createdAt)
		if t.ctx.Err() != nil || t.accessor.requests.Refused() != nil { // while the attempt waited for its turn
			t.accessor.set.options.Metrics.WaitedForTurn(t.ctx, waited)
			return
		}
		span := t.startSpan(waited)
		t.accessor.set.options.Metrics.WaitedForTurn(t.ctx, waited)
		finished, conn := run()
		finished.Attempt = t.Attempt
		endSpan(span, finished.Answer, t.ctx.Err() != nil)
		t.accessor.step(finished, eventPayload{conn: conn})
	})
}

func (t *attempt) priority() workpool.Priority {
	switch {
	case t.Urgent:
		return workpool.Urgent
	case t.Deferred:
		return workpool.Deferred
	default:
		return workpool.Normal
	}
}

// startSpan starts the span of the attempt. The requests of the attempt are below it.
func (t *attempt) startSpan(waited time.Duration) (span trace.Span) {
	name := tracing.Connect
	switch t.Kind {
	case lifecycle.Probe:
		name = tracing.Probe
	case lifecycle.Verify:
		name = tracing.Rotate
	}
	t.ctx, span = t.accessor.set.options.Tracer.Start(t.ctx, name)
	if span.IsRecording() {
		epoch := t.Epoch
		if t.Kind != lifecycle.Connect {
			epoch = t.conn.Epoch()
		}
		span.SetAttributes(tracing.Extension.String(connstate.KeyString(t.extension.Key)), tracing.Epoch.Int64(epoch),
			tracing.Target.String(t.membership.Host()), tracing.Wait.Float64(waited.Seconds()))
	}
	return span
}

// endSpan ends the span of an attempt or a review with its answer.
func endSpan(span trace.Span, answer lifecycle.Answer, cancelled bool) {
	result := answer.Verdict.String()
	if answer.NotSent != "" {
		result = string(answer.NotSent)
	}
	if cancelled {
		result = "Cancelled"
	}
	tracing.End(span, result, answer.Verdict != healthprobe.Valid)
}

// connect obtains a credential and asks the API server which identity the credential belongs to.
// The machine either begins the connection that connect returns, or has it closed.
func (t *attempt) connect() (lifecycle.AttemptFinished, *connection.Connection) {
	startedAt := time.Now()
	defer func() {
		if t.ctx.Err() == nil {
			t.accessor.set.options.Metrics.ConnectTook(t.ctx, time.Since(startedAt))
		}
	}()
	if err := t.prepare(); err != nil {
		return notSent(startedAt, err), nil
	}
	a := t.accessor
	// the callbacks hold the ID, not the attempt, which references the first credential
	sentAt, id := time.Now(), t.Attempt
	conn := connection.New(a.set.life, &a.tasks, &a.set.connections, t.extension, t.Epoch, t.membership.Target,
		t.credential,
		connection.Observers{
			Unauthorized:  func() { a.stepAsync(lifecycle.RequestUnauthorized{Attempt: id}) },
			AccessChanged: func() { a.stepAsync(lifecycle.AccessChanged{}) },
			ScopesChanged: a.reportChange,
		})
	timeout := a.set.options.HealthProbe.Timeout
	answer := a.asking().ask(t.ctx, conn, conn.ProbeClients(t.membership.RoundTripper(), timeout))
	conn.SetIdentity(answer.Identity)
	return lifecycle.AttemptFinished{Asked: sentAt, Answer: answer}, conn
}

// probe asks the API server whether it still states the same identity.
func (t *attempt) probe() (lifecycle.AttemptFinished, *connection.Connection) {
	sentAt := time.Now()
	timeout := t.accessor.set.options.HealthProbe.Timeout
	answer := t.accessor.asking().ask(t.ctx, t.conn, t.conn.ProbeClients(t.membership.RoundTripper(), timeout))
	if t.ctx.Err() == nil {
		t.accessor.set.options.Metrics.ProbeTook(t.ctx, time.Since(sentAt))
	}
	return lifecycle.AttemptFinished{Asked: sentAt, Answer: answer}, nil
}

// verify asks the API server which identity a newer credential belongs to.
func (t *attempt) verify() (lifecycle.AttemptFinished, *connection.Connection) {
	startedAt := time.Now()
	if err := t.prepare(); err != nil {
		return notSent(startedAt, err), nil
	}
	timeout := t.accessor.set.options.HealthProbe.Timeout
	clients := t.conn.ProbeClientsOf(t.credential, t.membership.RoundTripper(), timeout)
	sentAt := time.Now()
	answer := t.accessor.asking().ask(t.ctx, t.conn, clients)
	answer.OwnConnections = t.credential.OwnConnections()
	return lifecycle.AttemptFinished{Asked: sentAt, Answer: answer}, nil
}

// prepare obtains everything that requests with the credential need.
func (t *attempt) prepare() error {
	ctx, cancel := context.WithTimeout(t.ctx, t.accessor.set.options.Client.Timeout)
	defer cancel()
	return t.credential.Prepare(ctx)
}

// notSent is the result of an attempt whose own credential failed.
func notSent(startedAt time.Time, err error) lifecycle.AttemptFinished {
	return lifecycle.AttemptFinished{Asked: startedAt, Answer: lifecycle.NotSent(err)}
}

// ask asks the API server which identity the requests of clients have. If they impersonate, ask
// first asks who the credential's own user is. ask sends each question once: the machine decides
// whether and when it is asked again.
func (a asking) ask(ctx context.Context, conn *connection.Connection,
	clients connection.ProbeClients) lifecycle.Answer {
	var own connstate.Identity
	if clients.Own != nil {
		answer := a.once(ctx, conn, clients.Own)
		if answer.Own = true; answer.Verdict != healthprobe.Valid {
			answer.Err = errors.WithMessage(answer.Err, "the kubeconfig's own user")
			return answer
		}
		own = answer.Identity
	}
	answer := a.once(ctx, conn, clients.Identity)
	switch {
	case answer.Verdict == healthprobe.Valid:
		answer.Identity.ImpersonatorUsername, answer.Identity.ImpersonatorUID = own.Username, own.UID
	case answer.Verdict == healthprobe.Denied && clients.Own != nil:
		answer.Err = errors.WithMessagef(answer.Err,
			"%s, the user of the kubeconfig, needs impersonate on serviceaccounts "+
				"for %s there", own.Username, conn.Resolution().Expected.Username)
	case answer.Verdict == healthprobe.Denied && conn.Resolution().Impersonated:
		answer.Err = errors.WithMessagef(answer.Err,
			"the host operator needs impersonate on serviceaccount %s (a rule %s in that namespace)",
			conn.Resolution().ServiceAccount, identity.Rule(schema.GroupResource{Resource: "serviceaccounts"},
				[]string{conn.Resolution().ServiceAccount.Name}, "impersonate"))
	}
	return answer
}

// asking sends reviews, each within timeout.
type asking struct {
	logger  logr.Logger
	tracer  *tracing.Tracer
	timeout time.Duration
}

func (a *identityAccessor) asking() asking {
	return asking{a.set.options.Logger, a.set.options.Tracer, a.set.options.HealthProbe.Timeout}
}

// once sends one review. A request that failed because no credential was available was never sent.
// The error of such a request may have a status, which is not the answer of the target's API
// server.
func (a asking) once(ctx context.Context, conn *connection.Connection,
	httpClient *http.Client) (answer lifecycle.Answer) {
	ctx, span := a.tracer.Start(ctx, tracing.Review)
	defer func() { endSpan(span, answer, ctx.Err() != nil) }()
	config := conn.RESTConfig()
	config.RateLimiter, config.QPS = nil, -1 // a probe never waits behind the identity's own requests
	limited := *httpClient
	limited.Transport = untrusted.Limit(httpClient.Transport)
	got := healthprobe.Ask(ctx, config, &limited, a.timeout)
	answer = lifecycle.Answer{
		Verdict:    got.Verdict,
		Identity:   connstate.Identity(got.Identity),
		Err:        got.Err,
		RetryAfter: got.RetryAfter,
	}
	switch {
	case got.Err == nil:
	case !lifecycle.WasSent(got.Err):
		answer = lifecycle.NotSent(got.Err)
	case conn.Resolution().UntrustedServer:
		a.logger.V(1).Info("API server named by a credential returned an error", "target", conn.Host(),
			"error", connstate.ErrorText(got.Err))
		answer.Err = statusOnly(got.Err)
	}
	return answer
}

// statusOnly reduces the error of an answer to its status. The author of a kubeconfig names the
// server, and must not learn from its answers what the author may not read there. An error without
// a status is returned unchanged.
func statusOnly(err error) error {
	text, ok := untrusted.StatusText(err)
	if !ok {
		return err
	}
	return untrusted.Show(strings.TrimSpace("asking the API server who we are: the API server answered "+text), err)
}
