package accessor

import (
	"context"
	"net/http"
	"time"

	"github.com/pkg/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/latchkey-dev/latchkey/accessor/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/metrics"
)

// candidate is a newer credential for the same connection. It takes the place of the one in use once the API server has
// stated that it is the same identity's: nothing is sent with it before that but the question whose it is.
type candidate struct {
	resolved credential.Resolved
	proof    *proof
	next     time.Time // when to ask next
	backoff  wait.Backoff
}

// newVersionLocked takes a credential that was provided in place of the one in use, for the same target. One is tried at
// once, further ones not before an Interval has passed: whoever provides another with every look must not cause a storm.
func (a *identityAccessor) newVersionLocked(now time.Time, resolved credential.Resolved) (e effects) {
	connected := a.published.Load().conn != nil
	if connected && a.candidate != nil && a.candidate.resolved.Version == resolved.Version {
		return e
	}
	at := a.renewed.Add(a.set.options.HealthProbe.Interval)
	if early := at.After(now); !early {
		at, a.renewed = now, now
	} else if !connected && a.job != nil {
		return e // a connect is under way; its end brings us here again
	}
	if connected {
		e = a.dropCandidateLocked()
		a.candidate = &candidate{resolved: resolved, proof: openProof(resolved, a.target), next: at, backoff: a.set.options.ConnectBackoff}
		return e
	}
	// There is nothing to be kept. What is under way would prove what does not count any more.
	if a.job != nil {
		a.job.cancel()
		a.job = nil
	}
	e.then = append(e.then, a.proof.close)
	a.resolved, a.proof = resolved, openProof(resolved, a.target)
	if a.nextConnect.After(at) {
		a.nextConnect = at
	}
	return e
}

// dropCandidateLocked gives the candidate up, if there is one.
func (a *identityAccessor) dropCandidateLocked() (e effects) {
	if a.candidate == nil {
		return e
	}
	e.then = append(e.then, a.candidate.proof.close)
	a.candidate = nil
	if a.job != nil && a.job.verify {
		a.job.cancel()
		a.job = nil
	}
	return e
}

// unnoticeLocked notes that there is nothing to be said any more.
func (a *identityAccessor) unnoticeLocked() (e effects) {
	e.changed = a.notice != nil
	a.notice = nil
	return e
}

// noticeLocked notes why the newest credential is not used, although the connection lives on.
func (a *identityAccessor) noticeLocked(cause error) (e effects) {
	cause = errors.WithMessage(cause, "connected with an earlier credential; the newest is not used")
	if a.notice != nil && a.notice.Error() == cause.Error() {
		return e
	}
	a.notice = cause
	e.changed = true
	metrics.Rotations.WithLabelValues("NotUsed").Inc()
	generation := a.generation
	e.then = append(e.then, func() {
		a.set.options.Logger.Info("Newest credential not used", "extension", klog.KRef(a.key.Namespace, a.key.Name), "generation", generation, "error", connstate.ErrorText(cause))
	})
	return e
}

// startVerifyLocked asks the API server whose the candidate is.
func (a *identityAccessor) startVerifyLocked() func() {
	j := a.newJobLocked()
	j.proof, j.verify = a.candidate.proof, true
	conn, newer := a.published.Load().conn, a.candidate
	return func() {
		a.set.pool.submit(j.target.Host(), laneOf(j.target), false, func() {
			defer j.cancel()
			metrics.PoolWait.Observe(time.Since(j.begun).Seconds())
			a.runVerify(j, conn, newer)
		})
	}
}

// runVerify runs in the pool, without mu.
func (a *identityAccessor) runVerify(j *job, conn *connection, newer *candidate) {
	if j.ctx.Err() != nil {
		return
	}
	options := a.set.options
	prepareCtx, cancel := context.WithTimeout(j.ctx, options.Client.Timeout)
	err := j.proof.cred.Prepare(prepareCtx)
	cancel()
	answer := told{Answer: healthprobe.Answer{Verdict: healthprobe.Failing, Err: err}, reason: reasonOf(err), local: true}
	if err == nil {
		transport := named{userAgent: conn.config.UserAgent, next: j.proof.roundTripper(j.target.RoundTripper())}
		httpClient := &http.Client{Transport: transport, Timeout: options.HealthProbe.Timeout, CheckRedirect: neverRedirect}
		answer = ask(j.ctx, conn, httpClient, options.HealthProbe.Timeout)
	}
	result := "TakenUp"
	if answer.Verdict != healthprobe.Valid {
		result = answer.result()
	} else if !conn.stated.Same(answer.Identity) || !conn.stated.SameGroups(answer.Identity) {
		answer = mismatch("connected as", conn.stated, answer.Identity)
		result = string(IdentityMismatch)
	}
	if j.ctx.Err() == nil {
		metrics.Rotations.WithLabelValues(result).Inc()
	}
	current := false
	a.transition(func(now time.Time) (e effects) {
		if a.job != j || j.ctx.Err() != nil {
			return e
		}
		a.job = nil
		if a.candidate != newer {
			return effects{wake: true}
		}
		current = true
		return a.verifiedLocked(now, conn, newer, answer)
	})
	switch {
	case !current:
	case answer.fromServer():
		a.set.answered(j.target)
	case answer.Verdict == healthprobe.Silent && j.proof.line == nil: // a certificate may be what the server does not answer
		j.silent(a.set)
	}
}

// named is a RoundTripper that names the extension to the API server.
type named struct {
	userAgent string
	next      http.RoundTripper
}

func (n named) RoundTrip(req *http.Request) (*http.Response, error) {
	req = utilnet.CloneRequest(req)
	req.Header.Set("User-Agent", n.userAgent)
	return n.next.RoundTrip(req)
}

// verifiedLocked decides over the candidate.
func (a *identityAccessor) verifiedLocked(now time.Time, conn *connection, newer *candidate, answer told) (e effects) {
	switch {
	case answer.Verdict == healthprobe.Valid:
		older := a.proof
		a.resolved, a.proof, a.candidate = newer.resolved, newer.proof, nil
		e = a.unnoticeLocked()
		conn.proof.Store(newer.proof)
		a.health = a.health.After(now, nil)
		generation := a.generation
		e.then = append(e.then, func() {
			older.retire(conn.life, a.set.options.Client.Timeout)
			a.set.options.Logger.Info("Took up a newer credential", "extension", klog.KRef(a.key.Namespace, a.key.Name), "generation", generation)
		})
	case answer.reason == IdentityMismatch:
		// The newest one is somebody else's, and whoever provided it meant that: a new connection, and nothing of the old one.
		return a.disconnectLocked(now, IdentityMismatch, answer.Err)
	default:
		newer.next = now.Add(newer.backoff.Step())
		e = a.noticeLocked(answer.Err)
	}
	e.wake = true
	return e
}
