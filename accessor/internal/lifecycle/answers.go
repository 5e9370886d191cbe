package lifecycle

import (
	"time"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/jitter"
)

// finished takes the answer of an attempt. An answer that comes late has no effect but to be
// discarded.
func (s *step) finished(e AttemptFinished) {
	if e.Attempt != s.attempt.id {
		s.discard(e)
		return
	}
	c := conclusion{step: s, e: e, was: s.attempt}
	s.attempt = attempt{}
	switch c.was.kind {
	case Connect:
		c.connectFinished()
	case Probe:
		c.probeFinished()
	case Verify:
		c.verifyFinished()
	}
}

// errLate is the cause with which a connection of a late connect ends. No caller ever had a handle
// of such a connection.
var errLate = errors.New("the connect came too late")

// discard makes the driver close the connection of a late connect.
func (s *step) discard(e AttemptFinished) {
	s.emit(DiscardConnection{Attempt: e.Attempt, Reason: connstate.ReasonNotStarted, Cause: errLate})
}

// conclusion is a step that handles the end of an attempt.
type conclusion struct {
	*step
	e   AttemptFinished
	was attempt
}

// connectFinished handles the answer of a connect.
func (s conclusion) connectFinished() {
	answer, reason := s.e.Answer, reasonOf(s.e.Answer)
	switch {
	case answer.Verdict == connstate.Valid && !s.resolution.Expected.Matches(answer.Identity):
		answer, reason = mismatch(s.resolution.Expected, answer.Identity), connstate.ReasonIdentityMismatch
	case answer.Verdict == connstate.Denied && s.resolution.Impersonated && !answer.Own:
		reason = connstate.ReasonUnauthorized // the server denies the impersonation itself
	}
	if reason == "" {
		s.connected()
		return
	}
	if answer.Verdict == connstate.Denied && s.tryDeniedAgain() {
		s.publish(connstate.PhaseConnecting, reason, answer.Err)
		s.emit(DiscardConnection{Attempt: s.e.Attempt, Reason: reason, Cause: answer.Err})
		s.emit(ReportTarget{Target: s.target, Answered: true, Asked: s.e.Asked})
		return
	}
	if isUnaccepted(reason) {
		s.emit(DiscardSecret{Credential: s.credential, Before: s.e.Asked})
	}
	if answer.Verdict == connstate.Throttled {
		s.health = s.health.Inconclusive(s.now, answer.Err)
	} else {
		s.health = s.health.After(s.now, answer.Err)
	}
	s.backOffAfter(answer)
	s.publish(connstate.PhaseDisconnected, reason, answer.Err)
	s.emit(DiscardConnection{Attempt: s.e.Attempt, Reason: reason, Cause: answer.Err})
	s.emit(Record{Counter: Connects, Result: string(reason)})
	s.emit(Log{Message: MessageConnectFail, Verbose: true, Epoch: s.epoch, Reason: reason, Err: answer.Err})
	s.emit(ReportTarget{
		Target:   s.target,
		Answered: reason != connstate.ReasonUnreachable,
		Asked:    s.e.Asked,
		Err:      answer.Err,
	})
}

// tryDeniedAgain reports whether a connect that was denied is repeated, and when. An API server
// that has just started denies permitted requests, so the connect goes on for Probe.Timeout.
// Meanwhile nothing runs: an identity that is denied for good keeps no other from connecting.
func (s conclusion) tryDeniedAgain() bool {
	if s.deniedUntil.IsZero() {
		s.deniedUntil, s.denials = s.e.Asked.Add(s.config.Probe.Timeout), s.config.DenialRetry
	}
	if !s.now.Before(s.deniedUntil) {
		return false
	}
	s.nextConnect = earlier(s.now.Add(jitter.Step(&s.denials, s.seen.Jitter)), s.deniedUntil)
	return true
}

// connected begins the connection that the attempt created.
func (s conclusion) connected() {
	s.epoch++
	s.phase, s.reason, s.cause, s.since, s.disconnectedSince = connstate.PhaseConnected, "", nil, s.now, time.Time{}
	s.deniedUntil, s.usedSince = time.Time{}, s.now
	s.connection, s.stated = s.e.Attempt, s.e.Answer.Identity
	s.health = connstate.Health{}.After(s.now, nil)
	s.resetBackoff()
	s.probeReason, s.announced = byClock, announcement{}
	s.emit(BeginConnection{Attempt: s.e.Attempt})
	s.emit(Publish{Phase: connstate.PhaseConnected, Since: s.now, Epoch: s.epoch})
	s.notify()
	s.emit(Record{Counter: Connects, Result: string(connstate.PhaseConnected)})
	s.emit(Log{Message: MessageConnected, Epoch: s.epoch})
	s.emit(ReportTarget{Target: s.target, Answered: true, Asked: s.e.Asked})
	s.emit(ReportIdentity{Verified: s.now})
}

// isUnaccepted reports whether the server rejected the credential, or stated another identity for
// it.
func isUnaccepted(reason connstate.Reason) bool {
	return reason == connstate.ReasonUnauthorized || reason == connstate.ReasonIdentityMismatch
}

// probeFinished decides whether the connection continues.
func (s conclusion) probeFinished() {
	answer, reason := s.e.Answer, reasonOf(s.e.Answer)
	if answer.Verdict == connstate.Valid && !s.stated.Same(answer.Identity) {
		answer, reason = mismatch(s.stated, answer.Identity), connstate.ReasonIdentityMismatch
	}
	s.emit(Record{Counter: Probes, Result: resultOf(answer, reason)})
	s.reportProbe(answer)
	if answer.Verdict == connstate.Throttled {
		s.probeThrottled(reason)
		return
	}
	s.throttled = throttled{}
	switch {
	case reason == "":
		s.health = s.health.After(s.now, nil)
		if s.stated.SameGroups(answer.Identity) {
			s.emit(ReportIdentity{Verified: s.now})
		}
	case answer.Verdict == connstate.Denied && !s.resolution.Impersonated:
		// The server answers and says nothing about the identity.
		s.health = s.health.Inconclusive(s.now, answer.Err)
	case isUnaccepted(reason): // such as a 401
		s.emit(DiscardSecret{Credential: s.credential, Before: s.e.Asked})
		s.emit(ReportIdentity{})
		s.health = s.seen.health(s.health).After(s.now, answer.Err)
		s.connectNow() // with a new token it may well work
		s.disconnect(reason, answer.Err)
	case answer.Verdict == connstate.Denied && !answer.Own:
		// The server denies the impersonation itself. One denial may come from its first moments.
		s.health = s.health.After(s.now, answer.Err)
		s.giveUpIfFailed(connstate.ReasonUnauthorized, answer.Err)
	default:
		s.health = s.seen.health(s.health).After(s.now, answer.Err)
		s.giveUpIfFailed(reason, answer.Err)
	}
}

// probeThrottled handles a probe that the server refuses for now. The connection and its informers
// go on, because connects and lists would make the overload worse. ThrottleTimeout of nothing but
// such answers ends it.
func (s conclusion) probeThrottled(reason connstate.Reason) {
	answer := s.e.Answer
	if !s.isThrottled(s.seen) {
		s.throttled.since = s.now
	}
	end := s.throttled.since.Add(s.config.Probe.ThrottleTimeout)
	// All identities there are refused, and their probes must stay as far apart as those of healthy
	// ones.
	wait := max(answer.RetryAfter, s.config.Probe.Spread(s.seen.Members))
	s.throttled.until, s.throttled.evidence = earlier(s.now.Add(wait), end), s.seen.latest()
	s.health = s.health.Inconclusive(s.now, answer.Err)
	if !s.now.Before(end) {
		s.backOffAfter(answer)
		s.disconnect(reason, answer.Err)
	}
}

// giveUpIfFailed disconnects after FailureThreshold failures.
func (s conclusion) giveUpIfFailed(reason connstate.Reason, cause error) {
	if s.config.Probe.Failed(s.health) {
		s.backOff()
		s.disconnect(reason, cause)
	}
}

// reportProbe reports to the target whether the target answered. A failure of our own credential is
// not reported, because it is no evidence about the target.
func (s conclusion) reportProbe(answer Answer) {
	switch {
	case answer.NotSent != "":
	case answer.Verdict == connstate.Silent && s.was.kind == Verify && answer.OwnConnections:
		// The server may be silent because of the certificate.
	case answer.Verdict.Answered():
		s.emit(ReportTarget{Target: s.target, Answered: true, Asked: s.e.Asked})
	default:
		s.emit(ReportTarget{Target: s.target, Asked: s.e.Asked, ForAll: s.was.probeReason == forAll, Err: answer.Err})
	}
}

// verifyFinished handles the answer about a newer credential.
func (s conclusion) verifyFinished() {
	answer, reason := s.e.Answer, reasonOf(s.e.Answer)
	result := resultOf(answer, reason)
	switch {
	case answer.Verdict != connstate.Valid:
	case s.stated.Same(answer.Identity) && s.stated.SameGroups(answer.Identity):
		result = "TakenUp"
	default: // also for other groups: the cache was filled with the old ones
		answer, reason = mismatch(s.stated, answer.Identity), connstate.ReasonIdentityMismatch
		result = string(reason)
	}
	s.emit(Record{Counter: Rotations, Result: result})
	s.reportProbe(answer)
	switch reason {
	case "":
		rotating{s.step}.takeUp()
		s.health = s.health.After(s.now, nil)
		s.throttled = throttled{}
	case connstate.ReasonIdentityMismatch:
		// The newest credential belongs to another identity. The extension gets a new connection,
		// which shares nothing with the old one.
		s.disconnect(reason, answer.Err)
	default:
		s.rotation.next = s.now.Add(max(jitter.Step(&s.rotation.backoff, s.seen.Jitter), s.boundedRetry(answer)))
		cause := answer.Err // of the API server, which does not know where the credential is from
		if from := s.rotation.resolution.Source; from != "" {
			cause = errors.WithMessage(cause, from)
		}
		rotating{s.step}.reportRotationError(cause)
	}
}
