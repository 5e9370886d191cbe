package lifecycle

import (
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// resolved handles a Resolved event, and starts the attempt that is due.
func (s *step) resolved(e Resolved) {
	s.generation, s.source, s.reference = e.Generation, e.Resolution.Source, e.Resolution.Reference
	switch {
	case e.Err != nil && s.canGoOnUnread(e):
		// A cache could not be read. The credential in use may still be valid.
	case e.Err != nil && e.Resolution.KeepCurrent && s.phase == connstate.PhaseConnected &&
		e.Resolution.Source == s.resolution.Source && e.Resolution.Reference == s.resolution.Reference:
		// The newest credential cannot be used. The one in use stays while it works.
		rotating{s}.dropRotation()
		rotating{s}.reportRotationError(e.Err)
	case e.Err != nil:
		s.dropAndBackOff(ReasonOf(e.Err), e.Err)
		return
	case e.Resolution.Key != s.resolution.Key:
		if !s.adopt(e) {
			return
		}
	case e.Resolution.Version != s.resolution.Version:
		rotating{s}.newVersion(e.Resolution)
	default: // the newest credential is in use
		s.confirm(e.Resolution.ObjectVersion)
		rotating{s}.dropRotation()
		rotating{s}.clearRotationError()
	}
	s.start()
}

// confirm records that the credential in use is also that of another version of the extension.
// Those who read that version wait for it.
func (s *step) confirm(objectVersion string) {
	if s.resolution.ObjectVersion != objectVersion && s.phase == connstate.PhaseConnected {
		s.notify()
	}
	s.resolution.ObjectVersion = objectVersion
}

// canGoOnUnread reports whether the credential may stay in use although its reference could not be
// read. Without the permission to watch ServiceAccounts, the machine would not notice the deletion
// of an impersonated ServiceAccount. A token ends with its ServiceAccount. The ServiceAccount that
// is impersonated with a kubeconfig is not watched anyway.
func (m *Machine) canGoOnUnread(e Resolved) bool {
	isWatched := m.resolution.Impersonated && m.resolution.ServiceAccount != types.NamespacedName{}
	reason := ReasonOf(e.Err)
	unread := reason == connstate.ReasonUnreachable || reason == connstate.ReasonOperatorForbidden && !isWatched
	return unread && m.credential != 0 && e.Resolution.Reference == m.resolution.Reference &&
		e.Resolution.ServiceAccount == m.resolution.ServiceAccount && e.Resolution.Source == m.resolution.Source
}

// dropAndBackOff drops everything, because there is nothing to connect with. Events usually end
// that; the deadline is for those that do not come.
func (s *step) dropAndBackOff(reason connstate.Reason, cause error) {
	s.drop(reason, cause)
	if !s.now.Before(s.nextConnect) {
		s.backOff()
	}
}

var errOtherIdentity = errors.New(
	"the extension refers to another identity, API server, certificate authority or cache options now")

// adopt begins anew with another target or identity. It reports whether there is something to
// connect with.
func (s *step) adopt(e Resolved) bool {
	if s.credential != 0 {
		s.drop(connstate.ReasonIdentityMismatch, errOtherIdentity)
	}
	if e.TargetErr != nil {
		s.dropAndBackOff(connstate.ReasonInvalidCredential, e.TargetErr)
		return false
	}
	s.target, s.resolution, s.credential = e.Target, e.Resolution, CredentialID(s.newID())
	s.emit(AdoptTarget{Target: s.target})
	s.emit(OpenCredential{Credential: s.credential})
	s.resetBackoff()
	return true
}

// start begins the attempt that is due, if there is one.
func (s *step) start() {
	kind, _ := s.due(s.now, s.seen)
	if kind == 0 {
		return
	}
	s.attempt = attempt{id: AttemptID(s.newID()), kind: kind}
	create := CreateAttempt{Attempt: s.attempt.id, Kind: kind, Credential: s.credential}
	switch kind {
	case Connect:
		create.Epoch, create.Deferred = s.epoch+1, !s.deniedUntil.IsZero()
	case Probe:
		create.Urgent = s.health.ConsecutiveFailures == 0 && s.throttled.since.IsZero()
		s.attempt.probeReason, s.probeReason = s.probeReason, byClock
	case Verify:
		create.Credential = s.rotation.credential
	}
	s.attempt.credential = create.Credential
	s.emit(create)
	if kind == Connect {
		s.publish(connstate.PhaseConnecting, s.reason, s.cause)
	}
	s.emit(SubmitAttempt{Attempt: s.attempt.id})
}
