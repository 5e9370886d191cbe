package lifecycle

import (
	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// rotating is a step that handles a newer credential of a connection.
type rotating struct{ *step }

// newVersion handles a newer credential for the same target and identity. The first newer
// credential is tried at once, and further ones not before an Interval has passed. A provider that
// returns another credential with every call thus causes no burst of requests.
func (s rotating) newVersion(resolution Resolution) {
	connected := s.phase == connstate.PhaseConnected
	if connected && s.rotation != nil && s.rotation.resolution.Version == resolution.Version {
		s.rotation.resolution.ObjectVersion = resolution.ObjectVersion
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
		s.rotation = &rotation{
			credential: CredentialID(s.newID()),
			resolution: resolution,
			next:       at,
			backoff:    s.config.Backoff,
		}
		s.emit(OpenCredential{Credential: s.rotation.credential})
		return
	}
	// There is no connection to keep. The attempt under way would verify a credential that is no
	// longer the newest.
	s.cancelAttempt()
	s.emit(CloseCredential{Credential: s.credential})
	s.resolution, s.credential = resolution, CredentialID(s.newID())
	s.emit(OpenCredential{Credential: s.credential})
	if s.nextConnect.After(at) {
		s.nextConnect = at
	}
}

// dropRotation closes the newer credential, if there is one.
func (s rotating) dropRotation() {
	if s.rotation == nil {
		return
	}
	s.emit(CloseCredential{Credential: s.rotation.credential})
	s.rotation = nil
	if s.attempt.kind == Verify {
		s.cancelAttempt()
	}
}

// takeUp replaces the credential in use with the newer one.
func (s rotating) takeUp() {
	s.emit(UseCredential{Credential: s.rotation.credential})
	s.emit(RetireCredential{Credential: s.credential})
	s.confirm(s.rotation.resolution.ObjectVersion)
	s.credential, s.resolution, s.rotation = s.rotation.credential, s.rotation.resolution, nil
	s.usedSince = s.now
	s.clearRotationError()
	s.emit(Log{Message: MessageTakenUp, Epoch: s.epoch})
}

// clearRotationError records that the newest credential is in use.
func (s rotating) clearRotationError() {
	if s.rotationErr != nil {
		s.rotationErr = nil
		s.notify()
	}
}

// reportRotationError records and reports why the newest credential is not in use. The connection
// continues.
func (s rotating) reportRotationError(cause error) {
	cause = errors.WithMessage(cause, "connected with an earlier credential; the newest is not used")
	if s.rotationErr != nil && s.rotationErr.Error() == cause.Error() {
		return
	}
	if s.rotationErr == nil {
		s.rotationSince = s.now
	}
	s.rotationErr = cause
	s.notify()
	s.emit(Record{Counter: Rotations, Result: "NotUsed"})
	s.emit(Log{Message: MessageNotUsed, Epoch: s.epoch, Err: cause})
}
