package lifecycle

import (
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/jitter"
)

// step is one call of Machine.Step.
type step struct {
	*Machine
	now      time.Time
	seen     Observed
	effects  []Effect
	notified bool // Notify is among the effects
}

func (s *step) emit(e Effect) {
	if s.effects == nil {
		s.effects = make([]Effect, 0, 8) // of a connect or its end; most steps have none
	}
	s.effects = append(s.effects, e)
}

// notify emits Notify, at most once per step.
func (s *step) notify() {
	if !s.notified {
		s.notified = true
		s.emit(Notify{})
	}
}

// backOff delays the next connect.
func (s *step) backOff() { s.nextConnect = s.now.Add(jitter.Step(&s.backoff, s.seen.Jitter)) }

// backOffAfter delays the next connect as the answer asks, or else as backOff does. A server that
// refuses again and again is asked at longer and longer intervals, whatever it asks for: its own
// time is the same for one identity and for thousands.
func (s *step) backOffAfter(answer Answer) {
	if answer.RetryAfter <= 0 {
		s.backOff()
		return
	}
	asked := wait.Backoff{Duration: s.boundedRetry(answer), Steps: 1, Jitter: s.config.Backoff.Jitter}
	next := s.now.Add(jitter.Step(&asked, s.seen.Jitter))
	if s.reason == connstate.ReasonThrottled { // not the first time
		s.backOff()
		next = later(next, s.nextConnect)
	}
	s.nextConnect = next
}

// boundedRetry returns after which time the server wants to be asked again. No server delays that
// for longer than ThrottleTimeout.
func (s *step) boundedRetry(answer Answer) time.Duration {
	return min(answer.RetryAfter, s.config.Probe.ThrottleTimeout)
}

// connectNow lets the next connect begin at once.
func (s *step) connectNow() { s.nextConnect = s.now }

// resetBackoff resets the backoff, so that the next connect begins at once.
func (s *step) resetBackoff() { s.backoff, s.nextConnect = s.config.Backoff, time.Time{} }

// publish records that the machine is not connected. publish notifies the sources, and logs, if the
// disconnect or its reason is new.
func (s *step) publish(phase connstate.Phase, reason connstate.Reason, cause error) {
	wasConnected := s.phase == connstate.PhaseConnected
	if s.phase != phase {
		s.since = s.now
	}
	if s.disconnectedSince.IsZero() {
		s.disconnectedSince = s.now
	}
	s.phase, s.reason, s.cause, s.usedSince = phase, reason, cause, time.Time{}
	if phase != connstate.PhaseConnecting {
		s.deniedUntil = time.Time{}
	}
	s.emit(Publish{
		Phase:             phase,
		Reason:            reason,
		Since:             s.since,
		DisconnectedSince: s.disconnectedSince,
		Epoch:             s.epoch,
		Cause:             cause,
	})
	news := announcement{reason: reason, generation: s.generation, reference: s.reference}
	if phase != connstate.PhaseDisconnected || !wasConnected && s.announced == news {
		return
	}
	s.announced = news
	s.notify()
	if s.stage != serving && reason == connstate.ReasonNotStarted {
		return // the manager stops, which the driver logs once for all extensions
	}
	s.emit(Log{Message: MessageNotConnected, Epoch: s.epoch, Reason: reason, Err: cause})
}

// cancelAttempt cancels the attempt under way, if there is one.
func (s *step) cancelAttempt() {
	if s.attempt.id != 0 {
		s.emit(CancelAttempt{Attempt: s.attempt.id})
		s.attempt = attempt{}
	}
}

// disconnect ends the connection, if there is one, and what is under way. The credential stays, or
// the newer one takes its place, for there is no connection left to be kept.
func (s *step) disconnect(reason connstate.Reason, cause error) {
	s.cancelAttempt()
	wasConnected := s.phase == connstate.PhaseConnected
	s.publish(connstate.PhaseDisconnected, reason, cause)
	s.rotationErr = nil
	if newer := s.rotation; newer != nil {
		s.emit(CloseCredential{Credential: s.credential})
		s.credential, s.resolution, s.rotation = newer.credential, newer.resolution, nil
		// the server fails with any credential
		if reason != connstate.ReasonUnreachable && reason != connstate.ReasonProbeFailed &&
			reason != connstate.ReasonThrottled {
			s.resetBackoff()
			s.connectNow()
		}
	}
	if wasConnected {
		s.endConnection()
	}
}

func (s *step) endConnection() {
	s.health = s.seen.health(s.health) // what the connection was served counts after it
	s.connection, s.stated, s.probeReason = 0, connstate.Identity{}, byClock
	s.throttled = throttled{}
	s.emit(EndConnection{})
	s.emit(PauseWatches{})
}

// drop disconnects, closes the credential and releases the target.
func (s *step) drop(reason connstate.Reason, cause error) {
	s.disconnect(reason, cause)
	if s.credential != 0 {
		s.emit(CloseCredential{Credential: s.credential})
		s.emit(ReleaseTarget{Target: s.target})
	}
	s.credential, s.target, s.resolution = 0, 0, Resolution{}
}

// requestUnauthorized: only a probe can say what a 401 means, because the 401 of an aggregated API
// says nothing about the credential. One probe per Interval is enough, so the probe may have to
// wait. A probe that is under way may have been answered before the request was, so another one
// follows. probeFinished judges the answer.
func (s *step) requestUnauthorized(e RequestUnauthorized) {
	if s.phase == connstate.PhaseConnected && e.Attempt == s.connection && s.probeReason == byClock {
		s.probeReason = unauthorized
	}
}

func (s *step) probeRequested(e ProbeRequested) {
	if s.AcceptsProbe(e) {
		s.probeReason = forAll
	}
}

// targetDown ends the connection, because no member of the target gets an answer.
func (s *step) targetDown(e TargetDown) {
	if s.phase != connstate.PhaseConnected || e.Target != s.target {
		return
	}
	s.health = s.seen.health(s.health).WithTarget(s.seen.Target)
	s.backOff()
	s.disconnect(connstate.ReasonUnreachable, e.Err)
}

// retryAt: the target answers again, so a connect that waits need not wait for its whole backoff.
func (s *step) retryAt(e RetryAt) {
	_, _, waitsUntil := s.Standing()
	if e.Target == s.target && waitsUntil.After(e.At) {
		s.nextConnect = e.At
	}
}

// resultOf returns the metric label for an answer.
func resultOf(answer Answer, reason connstate.Reason) string {
	switch {
	case answer.NotSent != "":
		return "NoCredential"
	case reason == connstate.ReasonIdentityMismatch:
		return string(reason)
	default:
		return answer.Verdict.String()
	}
}

// reasonOf returns the reason why an answer prevents or ends a connection; "" if the answer is
// Valid.
func reasonOf(answer Answer) connstate.Reason {
	switch {
	case answer.Verdict == connstate.Valid:
		return ""
	case answer.NotSent != "":
		return answer.NotSent
	default:
		return connstate.ReasonOfVerdict(answer.Verdict)
	}
}

// mismatch returns a failure for the answer of a server that states another identity, or other
// groups.
func mismatch(want, got connstate.Identity) Answer {
	if want.Same(got) {
		// The error does not contain the groups: a server that a tenant chose may state anything.
		return Answer{
			Verdict: connstate.Failing,
			Err:     errors.Errorf("unexpected groups of %s: they have changed", got.Username),
		}
	}
	if want.ImpersonatorUsername != "" && !want.SameImpersonator(got) {
		return Answer{
			Verdict: connstate.Failing,
			Err: errors.Errorf(
				"unexpected identity: the user who impersonates %s is %s (UID %s), want %s (UID %s)", got.Username,
				got.ImpersonatorUsername, got.ImpersonatorUID, want.ImpersonatorUsername, want.ImpersonatorUID),
		}
	}
	return Answer{
		Verdict: connstate.Failing,
		Err: errors.Errorf("unexpected identity: got %s (UID %s), want %s (UID %s)",
			got.Username, got.UID, want.Username, want.UID),
	}
}
