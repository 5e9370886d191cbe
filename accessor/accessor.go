package accessor

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/credential"
	"github.com/latchkey-dev/latchkey/accessor/scopedcache"
	"github.com/latchkey-dev/latchkey/accessor/target"
	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/brief"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/metrics"
)

// identityAccessor is one extension's connection and its state machine.
//
//	Disconnected ──connect starts──► Connecting ──verified──► Connected
//	     ▲                               │                        │
//	     └───────────── failed ──────────┘                        │
//	     └──── credential changed or refused, target silent ──────┘
//
// Getters load published and nothing else. Everything else is bookkeeping under mu, which is never held across
// I/O, a channel send or a callback. Work is done by jobs in the pool; a job that ends acts only if it is still
// the accessor's current one.
type identityAccessor struct {
	key    client.ObjectKey
	set    *Set
	born   time.Time
	spread float64 // in [0,1): makes probes of identities that connected together drift apart

	published atomic.Pointer[snapshot]

	mu          sync.Mutex // guards what follows
	removed     bool
	object      client.Object       // as last reconciled; not changed
	source      string              // of the credential that the extension refers to, also where there is none
	resolved    credential.Resolved // what proof and target were made for; zero Key if there are none
	proof       *proof
	target      *target.Target
	candidate   *candidate // of a proof that may replace it, nil if there is none
	notice      error      // why the newest credential is not used, nil if it is; only while connected
	renewed     time.Time  // when a newer credential last was tried at once
	job         *job       // under way, nil if none
	backoff     wait.Backoff
	nextConnect time.Time
	down        time.Time // since when not connected, zero while connected
	generation  int64     // counts connects
	health      healthprobe.State
	wish        probeWish
	announced   announcement // what the last Changed was about

	watches watches.Registry // has a lock of its own; may be used under mu, and does not come back here
}

// announcement is what extension sources were last told of an extension that is not connected. Zero while it is.
type announcement struct {
	reason     Reason
	generation int64 // metadata.generation of the extension, so that an edit that does not help is told too
}

// probeWish is whether somebody asked for a probe, beside the clock.
type probeWish int

const (
	noWish    probeWish = iota
	ownWish             // the identity got a 401
	forTarget           // the target is silent; this member asks for all
)

// job is a connect or probe in the pool. Its address is its identity.
type job struct {
	ctx    context.Context
	cancel context.CancelFunc
	proof  *proof
	target *target.Target
	verify bool // it asks about a candidate, which says nothing of the credential in use
	begun  time.Time
}

// laneOf returns what the pool asks about a target.
func laneOf(t *target.Target) func() lane {
	return func() lane {
		switch {
		case t.Answers():
			return proven
		case t.Tried():
			return doubtful
		default:
			return untried
		}
	}
}

// silent notes that the job got no answer. If another member got one meanwhile, those that wait are woken after all.
func (j *job) silent(s *Set) {
	j.target.MarkSilent()
	if j.target.LastAnswer().After(j.begun) {
		s.answered(j.target)
	}
}

func newAccessor(set *Set, key client.ObjectKey) *identityAccessor {
	now := time.Now()
	a := &identityAccessor{key: key, set: set, born: now, spread: rand.Float64(), backoff: set.options.ConnectBackoff, down: now,
		watches: watches.Registry{Extension: key, Scheme: set.options.Scheme, Logger: set.options.Logger}}
	a.published.Store(&snapshot{phase: Disconnected, reason: NotStarted, since: now,
		err: &NotConnectedError{Extension: key, Reason: NotStarted, Since: now}})
	return a
}

// effects are what a transition wants done once mu is released.
type effects struct {
	then    []func() // first, in order
	changed bool     // tell the extension sources
	wake    bool     // reconcile soon
}

// and joins effects, in order.
func (e effects) and(more effects) effects {
	return effects{then: append(e.then, more.then...), changed: e.changed || more.changed, wake: e.wake || more.wake}
}

// transition runs f under mu and then, without it, what f asks for.
func (a *identityAccessor) transition(f func(now time.Time) effects) {
	a.mu.Lock()
	e := f(time.Now())
	object := a.object
	a.mu.Unlock()
	for _, f := range e.then {
		f()
	}
	if e.changed && object != nil {
		a.set.options.Changed(object)
	}
	if e.wake {
		a.set.options.Wake(a.key)
	}
}

// reconcile takes what the extension is to connect as and starts what is due. It returns after what time to be
// called again, 0 if only when woken.
func (a *identityAccessor) reconcile(object client.Object, resolved credential.Resolved, resolveErr error) (again time.Duration) {
	a.transition(func(now time.Time) (e effects) {
		if a.removed {
			return e
		}
		a.object, a.source = object, resolved.Source
		if resolveErr != nil {
			reason := reasonOf(resolveErr)
			switch {
			case a.proof != nil && canGoOnUnread(reason, a.resolved) && resolved.ServiceAccount == a.resolved.ServiceAccount && resolved.Source == a.resolved.Source:
				// A cache could not be read; nothing is known against what we have.
			case resolved.Keep && a.published.Load().conn != nil && resolved.Source == a.resolved.Source:
				// The newest one cannot be used. What we have is kept while it works.
				e = a.dropCandidateLocked()
				e = e.and(a.noticeLocked(resolveErr))
			default:
				e = a.dropLocked(now, reason, resolveErr)
				again = a.delayLocked(now)
				return e
			}
			resolved = a.resolved
		}
		if resolved.Key == a.resolved.Key && resolved.Version != a.resolved.Version {
			e = a.newVersionLocked(now, resolved)
		} else if resolved.Key == a.resolved.Key && resolveErr == nil {
			e = a.dropCandidateLocked().and(a.unnoticeLocked()) // what is newest is in use
		}
		if resolved.Key != a.resolved.Key {
			if a.proof != nil {
				e = a.dropLocked(now, IdentityMismatch, errors.New("the extension refers to another identity, API server or certificate authority now; connecting anew"))
			}
			t, err := a.set.targets.Acquire(resolved.Target)
			if err != nil {
				e = e.and(a.dropLocked(now, InvalidCredential, err))
				again = a.delayLocked(now)
				return e
			}
			a.resolved, a.proof, a.target = resolved, openProof(resolved, t), t
			a.backoff, a.nextConnect = a.set.options.ConnectBackoff, time.Time{}
		}
		action, after := decide(a.viewLocked(now), a.set.options.HealthProbe)
		again = after
		switch action {
		case connect:
			e.then = append(e.then, a.startConnectLocked(now))
		case probe:
			e.then = append(e.then, a.startProbeLocked())
		case verify:
			e.then = append(e.then, a.startVerifyLocked())
		}
		return e
	})
	return again
}

// isOf reports whether the accessor is that of the object, and not of an earlier one of the same name.
func (a *identityAccessor) isOf(object client.Object) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.object == nil || a.object.GetUID() == object.GetUID()
}

func (a *identityAccessor) viewLocked(now time.Time) view {
	s := a.published.Load()
	v := view{
		now: now, phase: s.phase, busy: a.job != nil, nextConnect: a.nextConnect,
		health: a.health, wanted: a.wish != noWish, spread: a.spread,
	}
	if s.conn != nil {
		v.health = a.health.Served(s.conn.lastServed())
		v.target = a.target.Health()
	}
	if a.candidate != nil {
		v.verify = a.candidate.next
	}
	return v
}

// delayLocked is how long to wait before looking at an extension that has nothing to connect with. Events usually
// come first.
func (a *identityAccessor) delayLocked(now time.Time) time.Duration {
	if !now.Before(a.nextConnect) {
		a.stepBackoffLocked(now)
	}
	return a.nextConnect.Sub(now)
}

// startConnectLocked makes the accessor Connecting and returns what to do without mu.
func (a *identityAccessor) startConnectLocked(now time.Time) func() {
	j := a.newJobLocked()
	generation, resolved := a.generation+1, a.resolved
	a.publishLocked(now, Connecting, a.published.Load().reason, a.published.Load().err.Cause)
	return func() {
		a.set.pool.submit(j.target.Host(), laneOf(j.target), false, func() {
			defer j.cancel()
			metrics.PoolWait.Observe(time.Since(j.begun).Seconds())
			a.runConnect(j, generation, resolved)
		})
	}
}

func (a *identityAccessor) startProbeLocked() func() {
	j := a.newJobLocked()
	conn, wish := a.published.Load().conn, a.wish
	a.wish = noWish
	healthy := a.health.ConsecutiveFailures == 0
	return func() {
		a.set.pool.submit(j.target.Host(), laneOf(j.target), healthy, func() {
			defer j.cancel()
			metrics.PoolWait.Observe(time.Since(j.begun).Seconds())
			a.runProbe(j, conn, wish)
		})
	}
}

func (a *identityAccessor) newJobLocked() *job {
	ctx, cancel := context.WithCancel(a.set.life)
	a.job = &job{ctx: ctx, cancel: cancel, proof: a.proof, target: a.target, begun: time.Now()}
	return a.job
}

// runConnect obtains a credential and asks the API server who it makes us. It runs in the pool, without mu.
func (a *identityAccessor) runConnect(j *job, generation int64, resolved credential.Resolved) {
	if j.ctx.Err() != nil {
		return // given up while it waited for its turn
	}
	options, begun := a.set.options, time.Now()
	defer func() {
		if j.ctx.Err() == nil {
			metrics.ConnectDuration.Observe(time.Since(begun).Seconds())
		}
	}()
	prepareCtx, cancel := context.WithTimeout(j.ctx, options.Client.Timeout)
	err := j.proof.cred.Prepare(prepareCtx)
	cancel()
	if err != nil {
		a.connectFailed(j, reasonOf(err), err)
		return
	}
	asked := time.Now()
	var conn *connection
	conn = newConnection(a.set.life, &a.set.owned, options, a.key, generation, j.target, j.proof, resolved,
		func() { a.sawUnauthorized(conn) }, a.rightsChanged)
	answer := askUntilTold(j.ctx, conn, options.HealthProbe.Timeout)
	if answer.Verdict == healthprobe.Valid && !resolved.Expected.Matches(answer.Identity) {
		answer = mismatch("expected", resolved.Expected, answer.Identity)
	}
	if answer.Verdict != healthprobe.Valid {
		if answer.unaccepted() {
			j.proof.cred.Discard(asked)
		}
		conn.close(a.notConnected(answer.reason, answer.Err))
		a.connectFailed(j, answer.reason, answer.Err)
		return
	}
	conn.stated, conn.identity = answer.Identity, answer.Identity
	if conn.identity.UID == "" {
		conn.identity.UID = resolved.UID
	}
	a.connected(j, conn)
}

// told is an answer and what it means for the connection.
type told struct {
	healthprobe.Answer
	reason Reason // why such an answer ends a connection; "" when Valid
	local  bool   // our own credential failed, and nobody was asked
}

// unaccepted reports whether the API server did not take the credential for what it should be.
func (t told) unaccepted() bool { return t.reason == Unauthorized || t.reason == IdentityMismatch }

// fromServer reports whether the answer came from the API server, and not from our own credential's failure.
func (t told) fromServer() bool {
	return t.Verdict.Answered() && !t.local
}

// result is what metrics call the answer.
func (t told) result() string {
	switch {
	case t.local:
		return "NoCredential"
	case t.reason == IdentityMismatch:
		return string(IdentityMismatch)
	default:
		return t.Verdict.String()
	}
}

func mismatch(what string, expected, seen Identity) told {
	err := errors.Wrapf(errIdentityMismatch, "%s %s (UID %s), it states %s (UID %s)", what, expected.Username, expected.UID, seen.Username, seen.UID)
	return told{Answer: healthprobe.Answer{Verdict: healthprobe.Failing, Err: err}, reason: IdentityMismatch}
}

// ask probes once. A request that failed for want of a credential never left, so its error's status, if any, is
// not the answer of the server that was to be asked.
func ask(ctx context.Context, conn *connection, httpClient *http.Client, timeout time.Duration) told {
	config := conn.restConfig()
	config.RateLimiter, config.QPS = nil, -1 // a probe never waits behind the identity's own requests
	limited := *httpClient
	limited.Transport = brief.Limit(httpClient.Transport)
	answer := told{Answer: healthprobe.Ask(ctx, config, &limited, timeout)}
	var none *credential.NoTokenError
	switch answer.reason = reasonOf(answer.Err); {
	case answer.Err == nil:
		answer.reason = ""
	case answer.reason != Unreachable, errors.As(answer.Err, &none):
		answer.Verdict, answer.local = healthprobe.Failing, true
	default:
		answer.reason = connstate.ReasonOfVerdict(answer.Verdict)
		if conn.resolved.Foreign {
			conn.options.Logger.V(1).Info("Answer of an API server that a credential chose", "target", conn.config.Host, "error", answer.Err.Error())
			answer.Err = discreet(answer.Err)
		}
		if answer.Verdict == healthprobe.Denied && conn.resolved.Impersonated {
			answer.Err = errors.WithMessagef(answer.Err, "the host operator needs impersonate on serviceaccount %s (config/rbac-examples/impersonation.yaml)", conn.resolved.ServiceAccount)
		}
	}
	return answer
}

// askUntilTold asks again while the answer is Denied: an API server in its first moments denies rightful requests.
// It takes no longer than timeout.
func askUntilTold(ctx context.Context, conn *connection, timeout time.Duration) told {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		answer := ask(ctx, conn, conn.httpClient, timeout)
		if answer.Verdict != healthprobe.Denied {
			return answer
		}
		select {
		case <-ctx.Done():
			if conn.resolved.Impersonated {
				answer.reason = Unauthorized
			}
			return answer
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (a *identityAccessor) connected(j *job, conn *connection) {
	ours := false
	a.transition(func(now time.Time) (e effects) {
		if a.job != j {
			return e
		}
		ours = true
		a.job = nil
		a.generation = conn.generation
		a.health = healthprobe.State{}.After(now, nil)
		a.backoff, a.nextConnect = a.set.options.ConnectBackoff, time.Time{}
		a.wish = noWish
		a.down = time.Time{}
		a.watches.Connected(conn)
		a.published.Store(&snapshot{phase: Connected, since: now, generation: conn.generation, conn: conn})
		a.announced = announcement{}
		return effects{changed: true, wake: true}
	})
	if !ours {
		conn.close(a.notConnected(NotStarted, errors.New("the connect came too late")))
		return
	}
	metrics.Connects.WithLabelValues(string(Connected)).Inc()
	a.set.options.Logger.Info("Connected", "extension", klog.KRef(a.key.Namespace, a.key.Name), "generation", conn.generation,
		"username", conn.identity.Username, "uid", conn.identity.UID, "target", j.target.Host())
	a.set.answered(j.target)
}

func (a *identityAccessor) connectFailed(j *job, reason Reason, cause error) {
	if j.ctx.Err() != nil {
		return // given up
	}
	a.transition(func(now time.Time) (e effects) {
		if a.job != j {
			return e
		}
		a.job = nil
		a.health = a.health.After(now, cause)
		a.stepBackoffLocked(now)
		e = a.publishLocked(now, Disconnected, reason, cause)
		e.wake = true // to be called again after delay
		return e
	})
	metrics.Connects.WithLabelValues(string(reason)).Inc()
	a.set.options.Logger.V(1).Info("Connect failed", "extension", klog.KRef(a.key.Namespace, a.key.Name), "reason", reason, "error", connstate.ErrorText(cause))
	if reason == Unreachable {
		j.silent(a.set)
	} else {
		a.set.answered(j.target)
	}
}

// runProbe asks the API server who we are. It runs in the pool, without mu.
func (a *identityAccessor) runProbe(j *job, conn *connection, wish probeWish) {
	if j.ctx.Err() != nil {
		return
	}
	asked := time.Now()
	answer := ask(j.ctx, conn, conn.httpClient, a.set.options.HealthProbe.Timeout)
	if answer.Verdict == healthprobe.Valid && !conn.stated.Same(answer.Identity) {
		answer = mismatch("connected as", conn.stated, answer.Identity)
	}
	if j.ctx.Err() == nil {
		metrics.ProbeDuration.Observe(time.Since(asked).Seconds())
		metrics.Probes.WithLabelValues(answer.result()).Inc()
	}
	if answer.unaccepted() {
		j.proof.cred.Discard(asked)
	}
	current := false
	a.transition(func(now time.Time) (e effects) {
		if a.job != j || j.ctx.Err() != nil {
			return e
		}
		current = true
		a.job = nil
		return a.probedLocked(now, conn, answer)
	})
	switch {
	case !current:
	case answer.fromServer():
		a.set.answered(j.target)
	case answer.Verdict == healthprobe.Silent:
		j.silent(a.set)
		if wish == forTarget && a.set.options.HealthProbe.Failed(j.target.Probed(asked, time.Now(), answer.Err)) {
			a.set.targetDown(j.target, answer.Err)
		}
	}
}

func (a *identityAccessor) probedLocked(now time.Time, conn *connection, answer told) effects {
	switch {
	case answer.Verdict == healthprobe.Valid:
		a.health = a.health.After(now, nil)
	case answer.Verdict == healthprobe.Denied && conn.resolved.Impersonated:
		// It is the impersonation that is denied, and not for a moment if it goes on.
		a.health = a.health.After(now, answer.Err)
		if a.set.options.HealthProbe.Failed(a.health) {
			a.stepBackoffLocked(now)
			return a.disconnectLocked(now, Unauthorized, answer.Err)
		}
	case answer.Verdict == healthprobe.Denied:
		// It answers, and says nothing of the identity: neither a success nor a failure.
		a.health.LastProbeTime, a.health.LastError = now, answer.Err
	case answer.unaccepted():
		a.health = a.health.Served(conn.lastServed()).After(now, answer.Err)
		a.nextConnect = now // with a new token it may well work
		return a.disconnectLocked(now, answer.reason, answer.Err)
	default:
		a.health = a.health.Served(conn.lastServed()).After(now, answer.Err)
		if a.set.options.HealthProbe.Failed(a.health) {
			a.stepBackoffLocked(now)
			return a.disconnectLocked(now, answer.reason, answer.Err)
		}
	}
	return effects{wake: true} // for the next clock
}

// stepBackoffLocked puts off the next connect.
func (a *identityAccessor) stepBackoffLocked(now time.Time) {
	a.nextConnect = now.Add(a.backoff.Step())
}

// targetSilent ends the connection because its target does not answer anybody.
func (a *identityAccessor) targetSilent(t *target.Target, cause error) {
	a.transition(func(now time.Time) (e effects) {
		conn := a.published.Load().conn
		if a.target != t || conn == nil {
			return e
		}
		a.health = a.health.Served(conn.lastServed()).WithTarget(t.Health())
		a.stepBackoffLocked(now)
		return a.disconnectLocked(now, Unreachable, cause)
	})
}

// targetBack brings the next connect forward to at, if it waits because the target was silent.
func (a *identityAccessor) targetBack(t *target.Target, at time.Time) {
	a.transition(func(time.Time) (e effects) {
		if a.waitsForLocked(t) && a.nextConnect.After(at) {
			a.nextConnect = at
			e.wake = true
		}
		return e
	})
}

func (a *identityAccessor) waitsFor(t *target.Target) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waitsForLocked(t)
}

func (a *identityAccessor) waitsForLocked(t *target.Target) bool {
	s := a.published.Load()
	return a.target == t && s.phase == Disconnected && s.reason == Unreachable
}

// sawUnauthorized is told of every 401 that a connection got. Only the probe can tell what it means: an
// aggregated API's 401 says nothing about the token. One probe per Interval is enough.
func (a *identityAccessor) sawUnauthorized(conn *connection) {
	a.transition(func(now time.Time) (e effects) {
		interval := a.set.options.HealthProbe.Interval
		if a.published.Load().conn != conn || a.wish != noWish || a.job != nil && !a.job.verify || now.Before(a.health.LastProbeTime.Add(interval)) {
			return e
		}
		a.wish = ownWish
		return effects{wake: true}
	})
}

// askForTarget makes the accessor probe on behalf of its target.
func (a *identityAccessor) askForTarget() {
	a.transition(func(time.Time) (e effects) {
		if a.published.Load().phase != Connected || a.job != nil && !a.job.verify {
			return e
		}
		a.wish = forTarget
		return effects{wake: true}
	})
}

// remove ends the accessor for ever.
func (a *identityAccessor) remove(reason Reason, cause error) {
	a.transition(func(now time.Time) (e effects) {
		if a.removed {
			return e
		}
		a.removed = true
		e = a.dropLocked(now, reason, cause)
		e.then = append(e.then, a.watches.End)
		e.changed, e.wake = true, false
		return e
	})
}

// dropLocked gives up the connection, what is under way, and the credential.
func (a *identityAccessor) dropLocked(now time.Time, reason Reason, cause error) effects {
	e := a.disconnectLocked(now, reason, cause)
	if a.proof != nil {
		e.then = append(e.then, a.proof.close, a.target.Release)
	}
	a.resolved, a.proof, a.target = credential.Resolved{}, nil, nil
	return e
}

// disconnectLocked ends the connection and what is under way, if any, and publishes why. Watches stay registered.
func (a *identityAccessor) disconnectLocked(now time.Time, reason Reason, cause error) effects {
	if a.job != nil {
		a.job.cancel()
		a.job = nil
	}
	conn := a.published.Load().conn
	e := a.publishLocked(now, Disconnected, reason, cause)
	a.notice = nil
	if newer := a.candidate; newer != nil { // there is nothing left to be kept
		e.then = append(e.then, a.proof.close)
		a.resolved, a.proof, a.candidate = newer.resolved, newer.proof, nil
		if reason != Unreachable && reason != ProbeFailed { // those are the server's, whatever the credential
			a.backoff, a.nextConnect = a.set.options.ConnectBackoff, now
		}
	}
	if conn != nil {
		conn.close(a.published.Load().err)
		e.then = append(e.then, func() { a.watches.Disconnected(conn) })
		a.wish = noWish
		e.wake = true
	}
	return e
}

// publishLocked publishes that the accessor is not connected. It tells sources and log when that, or the reason, is news.
func (a *identityAccessor) publishLocked(now time.Time, phase Phase, reason Reason, cause error) (e effects) {
	before := a.published.Load()
	since := before.since
	if before.phase != phase {
		since = now
	}
	if a.down.IsZero() {
		a.down = now
	}
	a.published.Store(&snapshot{phase: phase, reason: reason, since: since, generation: a.generation,
		err: &NotConnectedError{Extension: a.key, Reason: reason, Since: a.down, Cause: cause}})
	news := announcement{reason: reason}
	if a.object != nil {
		news.generation = a.object.GetGeneration()
	}
	if phase == Disconnected && (before.conn != nil || a.announced != news) {
		a.announced = news
		e.changed = true
		if a.removed && reason == NotStarted {
			return e // the manager stops, which is said once
		}
		generation := a.generation
		e.then = append(e.then, func() {
			a.set.options.Logger.Info("Not connected", "extension", klog.KRef(a.key.Namespace, a.key.Name), "generation", generation, "reason", reason, "error", connstate.ErrorText(cause))
		})
	}
	return e
}

func (a *identityAccessor) notConnected(reason Reason, cause error) *NotConnectedError {
	return &NotConnectedError{Extension: a.key, Reason: reason, Since: time.Now(), Cause: cause}
}

// state is a picture for people.
func (a *identityAccessor) state() ConnectionState {
	state, conn := a.stateWithoutScopes()
	if conn != nil {
		state.Scopes = conn.scopes()
		slices.SortFunc(state.Scopes, func(x, y scopedcache.ScopeState) int {
			return cmp.Or(cmp.Compare(x.GVK.String(), y.GVK.String()), cmp.Compare(x.Representation, y.Representation), cmp.Compare(x.Scope.String(), y.Scope.String()))
		})
	}
	return state
}

// rightsChanged tells the extension sources that the cache of the connection lost or won something.
func (a *identityAccessor) rightsChanged() {
	a.transition(func(time.Time) effects { return effects{changed: !a.removed} })
}

func (a *identityAccessor) stateWithoutScopes() (ConnectionState, *connection) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.published.Load()
	state := ConnectionState{Extension: a.key, Source: a.source, Phase: s.phase, Reason: s.reason, Since: s.since, Generation: s.generation, Health: a.healthLocked()}
	if a.object != nil {
		state.UID, state.ObservedGeneration = a.object.GetUID(), a.object.GetGeneration()
	}
	if a.target != nil {
		state.Target, state.Source = a.target.Host(), a.resolved.Source
	}
	if a.proof != nil {
		state.TokenExpires = a.proof.cred.Expires()
	}
	if s.conn != nil {
		state.Identity = s.conn.identity
		state.Identity.Groups = slices.Clone(s.conn.identity.Groups)
		state.Message = connstate.ErrorText(a.notice)
	} else if s.err.Cause != nil {
		state.Message = connstate.ErrorText(s.err.Cause)
	}
	state.Watches = a.watches.States()
	return state, s.conn
}

// healthLocked is the health to show.
func (a *identityAccessor) healthLocked() healthprobe.State {
	if conn := a.published.Load().conn; conn != nil {
		return a.health.Served(conn.lastServed()).WithTarget(a.target.Health())
	}
	return a.health
}

// unhealthy reports whether the extension is not connected or its last probe was no success, whatever the answer was, and
// since when it had none.
func (a *identityAccessor) unhealthy() (object client.Object, since time.Time, unhealthy bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	health := a.healthLocked()
	if a.object == nil || a.published.Load().conn != nil && !health.LastProbeTime.After(health.LastProbeSuccessTime) {
		return nil, time.Time{}, false
	}
	if since = health.LastProbeSuccessTime; since.IsZero() {
		since = a.born
	}
	return a.object, since, true
}
