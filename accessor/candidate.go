package accessor

import (
	"context"
	"net/http"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/latchkey-dev/latchkey/accessor/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
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

// newVersionLocked takes a credential that was provided in place of the one in use, for the same target.
func (a *identityAccessor) newVersionLocked(now time.Time, resolved credential.Resolved) (e effects) {
	connected := a.published.Load().conn != nil
	switch {
	case connected && a.candidate != nil && a.candidate.resolved.Version == resolved.Version:
		return e
	case connected:
		e = a.dropCandidateLocked()
		a.candidate = &candidate{resolved: resolved, proof: openProof(resolved, a.target), next: now, backoff: a.set.options.ConnectBackoff}
		return e
	}
	// There is nothing to be kept. What is under way would prove what does not count any more.
	if a.job != nil {
		a.job.cancel()
		a.job = nil
	}
	e.then = append(e.then, a.proof.close)
	a.resolved, a.proof = resolved, openProof(resolved, a.target)
	a.backoff, a.nextConnect = a.set.options.ConnectBackoff, time.Time{}
	return e
}

// dropCandidateLocked gives the candidate up, if there is one.
func (a *identityAccessor) dropCandidateLocked() (e effects) {
	if a.candidate == nil {
		return e
	}
	e.then = append(e.then, a.candidate.proof.close)
	a.candidate, a.notice = nil, nil
	return e
}

// noticeLocked notes why the newest credential is not used, although the connection lives on.
func (a *identityAccessor) noticeLocked(cause error) (e effects) {
	cause = errors.WithMessage(cause, "connected with an earlier credential; the newest is not used")
	if a.notice != nil && a.notice.Error() == cause.Error() {
		return e
	}
	a.notice = cause
	generation := a.generation
	e.then = append(e.then, func() {
		a.set.options.Logger.Info("Newest credential not used", "extension", klog.KRef(a.key.Namespace, a.key.Name), "generation", generation, "error", cause.Error())
	})
	return e
}

// startVerifyLocked asks the API server whose the candidate is.
func (a *identityAccessor) startVerifyLocked() func() {
	j := a.newJobLocked()
	j.proof = a.candidate.proof
	conn, newer := a.published.Load().conn, a.candidate
	return func() {
		a.set.pool.submit(j.target.Host(), laneOf(j.target), true, func() {
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
		httpClient := &http.Client{Transport: j.proof.roundTripper(j.target.RoundTripper()), Timeout: options.HealthProbe.Timeout, CheckRedirect: neverRedirect}
		answer = ask(j.ctx, conn, httpClient, options.HealthProbe.Timeout)
	}
	result := "TakenUp"
	if answer.Verdict != healthprobe.Valid {
		result = answer.result()
	} else if !conn.stated.Matches(answer.Identity) {
		answer = mismatch("connected as", conn.stated, answer.Identity)
		result = string(IdentityMismatch)
	}
	if j.ctx.Err() == nil {
		metrics.Rotations.WithLabelValues(result).Inc()
	}
	a.transition(func(now time.Time) (e effects) {
		if a.job != j || j.ctx.Err() != nil {
			return e
		}
		a.job = nil
		if a.candidate != newer {
			return effects{wake: true}
		}
		return a.verifiedLocked(now, conn, newer, answer)
	})
	if answer.Verdict == healthprobe.Silent {
		j.silent(a.set)
	} else if answer.fromServer() {
		a.set.answered(j.target)
	}
}

// verifiedLocked decides over the candidate.
func (a *identityAccessor) verifiedLocked(now time.Time, conn *connection, newer *candidate, answer told) (e effects) {
	switch {
	case answer.Verdict == healthprobe.Valid:
		older := a.proof
		a.resolved, a.proof, a.candidate, a.notice = newer.resolved, newer.proof, nil, nil
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
