package lifecycle

import (
	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// resolved takes what the extension is to connect as, and starts what is due.
func (s *step) resolved(e Resolved) {
	s.generation, s.source = e.Generation, e.Resolution.Source
	switch {
	case e.Err != nil && s.canGoOnUnread(e):
		// A cache could not be read. Nothing is known against the credential in use.
	case e.Err != nil && e.Resolution.KeepCurrent && s.phase == connstate.Connected &&
		e.Resolution.Source == s.resolution.Source:
		// The newest credential cannot be used. The one in use is kept while it works.
		s.dropRotation()
		s.reportRotationError(e.Err)
	case e.Err != nil:
		s.dropAndBackOff(e.Reason, e.Err)
		return
	case e.Resolution.Key != s.resolution.Key:
		if !s.adopt(e) {
			return
		}
	case e.Resolution.Version != s.resolution.Version:
		s.newVersion(e.Resolution)
	default: // the newest credential is in use
		s.dropRotation()
		s.clearRotationError()
	}
	s.start()
}

// canGoOnUnread reports whether the credential may be kept although the reference behind it could
// not be read. Without the permission to watch ServiceAccounts the deletion of an impersonated one
// would go unnoticed. A token ends with its ServiceAccount.
func (s *step) canGoOnUnread(e Resolved) bool {
	unread := e.Reason == connstate.Unreachable || e.Reason == connstate.OperatorForbidden && !s.resolution.Impersonated
	return unread && s.credential != 0 &&
		e.Resolution.ServiceAccount == s.resolution.ServiceAccount && e.Resolution.Source == s.resolution.Source
}

// dropAndBackOff drops everything, because there is nothing to connect with. Events usually end
// that; the deadline is for those that do not come.
func (s *step) dropAndBackOff(reason connstate.Reason, cause error) {
	s.drop(reason, cause)
	if !s.now.Before(s.nextConnect) {
		s.backOff()
	}
}

// adopt begins anew with another target or identity. It reports whether there is something to
// connect with.
func (s *step) adopt(e Resolved) bool {
	if s.credential != 0 {
		s.drop(connstate.IdentityMismatch,
			errors.New("the extension refers to another identity, API server or certificate authority now"))
	}
	if e.TargetErr != nil {
		s.dropAndBackOff(connstate.InvalidCredential, e.TargetErr)
		return false
	}
	s.target, s.resolution, s.credential = e.Target, e.Resolution, CredentialID(s.newID())
	s.emit(AdoptTarget{Target: s.target})
	s.emit(OpenCredential{Credential: s.credential})
	s.resetBackoff()
	return true
}

// newVersion takes a newer credential for the same target and identity. The first is tried at once,
// further ones not before an Interval has passed: a provider that returns another credential with
// every call must not cause a storm.
func (s *step) newVersion(resolution Resolution) {
	connected := s.phase == connstate.Connected
	if connected && s.rotation != nil && s.rotation.resolution.Version == resolution.Version {
		return
	}
	at := s.renewedAt.Add(s.config.Probe.Interval)
	if early := at.After(s.now); !early {
		at, s.renewedAt = s.now, s.now
	} else if !connected && s.attempt.id != 0 {
		return // a connect is under way; its end leads here again
	}
	if connected {
		s.dropRotation()
		s.rotation = &rotation{credential: CredentialID(s.newID()), resolution: resolution, next: at,
			backoff: s.config.Backoff}
		s.emit(OpenCredential{Credential: s.rotation.credential})
		return
	}
	// There is no connection to be kept. What is under way would prove what does not count any
	// more.
	s.cancelAttempt()
	s.emit(CloseCredential{Credential: s.credential})
	s.resolution, s.credential = resolution, CredentialID(s.newID())
	s.emit(OpenCredential{Credential: s.credential})
	if s.nextConnect.After(at) {
		s.nextConnect = at
	}
}

// dropRotation gives up the newer credential, if there is one.
func (s *step) dropRotation() {
	if s.rotation == nil {
		return
	}
	s.emit(CloseCredential{Credential: s.rotation.credential})
	s.rotation = nil
	if s.attempt.kind == Verify {
		s.cancelAttempt()
	}
}

// takeUp puts the newer credential in the place of the one in use.
func (s *step) takeUp() {
	s.emit(UseCredential{Credential: s.rotation.credential})
	s.emit(RetireCredential{Credential: s.credential})
	s.credential, s.resolution, s.rotation = s.rotation.credential, s.rotation.resolution, nil
	s.clearRotationError()
	s.emit(Log{Message: MessageTakenUp, Epoch: s.epoch})
}

// clearRotationError says that the newest credential is in use.
func (s *step) clearRotationError() {
	if s.rotationErr != nil {
		s.rotationErr = nil
		s.notify()
	}
}

// reportRotationError says why the newest credential is not in use, although the connection goes
// on.
func (s *step) reportRotationError(cause error) {
	cause = errors.WithMessage(cause, "connected with an earlier credential; the newest is not used")
	if s.rotationErr != nil && s.rotationErr.Error() == cause.Error() {
		return
	}
	s.rotationErr = cause
	s.notify()
	s.emit(Record{Counter: Rotations, Result: "NotUsed"})
	s.emit(Log{Message: MessageNotUsed, Epoch: s.epoch, Err: cause})
}

// start begins the attempt that is due, if one is.
func (s *step) start() {
	kind, _ := s.due(s.now, s.seen)
	if kind == 0 {
		return
	}
	s.attempt = attempt{id: AttemptID(s.newID()), kind: kind}
	create := CreateAttempt{Attempt: s.attempt.id, Kind: kind, Credential: s.credential}
	switch kind {
	case Connect:
		create.Epoch = s.epoch + 1
	case Probe:
		create.Urgent = s.health.ConsecutiveFailures == 0
		s.attempt.probeReason, s.probeReason = s.probeReason, byClock
	case Verify:
		create.Credential = s.rotation.credential
	}
	s.attempt.credential = create.Credential
	s.emit(create)
	if kind == Connect {
		s.publish(connstate.Connecting, s.reason, s.cause)
	}
	s.emit(SubmitAttempt{Attempt: s.attempt.id})
}
