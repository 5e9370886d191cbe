package lifecycle

import (
	"cmp"
	"slices"
	"time"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// Effect is something that the driver is to do. Effects come in the order in which they are to be
// carried out: first those for which [IsCommit] is true, then the others.
type Effect interface{ order() order }

// AttemptKind says what an attempt asks.
type AttemptKind int

const (
	// Connect obtains a credential and asks the API server whose it is.
	Connect AttemptKind = iota + 1
	// Probe asks the API server whether it still states the same identity.
	Probe
	// Verify asks the API server whose a newer credential is.
	Verify
)

// Commit effects.
type (
	// AdoptTarget says that the connection uses the target of the Resolved event from now on.
	AdoptTarget struct{ Target TargetID }
	// OpenCredential says to open the credential of the Resolved event under this ID.
	OpenCredential struct{ Credential CredentialID }
	// UseCredential says that requests of the connection use this credential from now on.
	UseCredential struct{ Credential CredentialID }
	// CreateAttempt says to make an attempt, which SubmitAttempt will start.
	CreateAttempt struct {
		Attempt    AttemptID
		Kind       AttemptKind
		Credential CredentialID
		Epoch      int64 // of the connection that a Connect makes
		Urgent     bool  // before attempts at the same target that are not
	}
	// CancelAttempt says that the attempt's answer does not count any more.
	CancelAttempt struct{ Attempt AttemptID }
	// BeginConnection says that what the attempt made is the connection from now on. Watches get it
	// before anybody else does.
	BeginConnection struct{ Attempt AttemptID }
	// Publish says that this is what getters see from now on.
	Publish struct {
		Phase     connstate.Phase
		Reason    connstate.Reason
		Since     time.Time // of the phase
		DownSince time.Time // since when there is no connection; zero if there is one
		Epoch     int64
		Cause     error
	}
	// EndConnection says that the connection ends, with what was published last as its error.
	EndConnection struct{}
)

// After effects.
type (
	// DiscardSecret says to forget a secret that was obtained before that time, because the server
	// did not accept it.
	DiscardSecret struct {
		Credential CredentialID
		Before     time.Time
	}
	// SubmitAttempt says to start the attempt.
	SubmitAttempt struct{ Attempt AttemptID }
	// DiscardConnection says to close what the attempt made, because it will not be used.
	DiscardConnection struct {
		Attempt AttemptID
		Reason  connstate.Reason
		Cause   error
	}
	// RetireCredential says to close a credential after a while, because requests may still be
	// using it.
	RetireCredential struct{ Credential CredentialID }
	// CloseCredential says to close a credential.
	CloseCredential struct{ Credential CredentialID }
	// ReleaseTarget says that the connection does not use the target any more.
	ReleaseTarget struct{ Target TargetID }
	// PauseWatches says that the watches let go of the connection that ended.
	PauseWatches struct{}
	// EndWatches says that the watches end for ever.
	EndWatches struct{}
	// ReportTarget says to report to the target whether it answered.
	ReportTarget struct {
		Target   TargetID
		Answered bool
		Asked    time.Time
		ForAll   bool // the target had this connection ask; a failure counts against the target
		Err      error
	}
	// Log says to write a line. Epoch is that of the connection that it is about.
	Log struct {
		Message string
		Verbose bool
		Epoch   int64
		Reason  connstate.Reason
		Err     error
	}
	// Record says to count something.
	Record struct {
		Counter Counter
		Result  string
	}
	// Notify says to notify the extension sources.
	Notify struct{}
	// Wake says to resolve the extension soon, because the deadline came forward.
	Wake struct{}
)

// Counter is one of the counters that metrics show.
type Counter int

const (
	// Connects counts connects by reason, or Connected.
	Connects Counter = iota + 1
	// Probes counts probes by verdict.
	Probes
	// Rotations counts newer credentials by what became of them.
	Rotations
)

// The messages of Log.
const (
	MessageConnected    = "Connected"
	MessageNotConnected = "Not connected"
	MessageConnectFail  = "Connect failed"
	MessageNotUsed      = "Newest credential not used"
	MessageTakenUp      = "Took up a newer credential"
)

// order is the place of an effect among the others of its step.
type order int

const (
	commit order = iota
	discardSecret
	submitAttempt
	discardConnection
	retireCredential
	closeCredential
	releaseTarget
	pauseWatches
	endWatches
	reportTarget
	logged
	recorded
	notify
	wake
)

func (AdoptTarget) order() order       { return commit }
func (OpenCredential) order() order    { return commit }
func (UseCredential) order() order     { return commit }
func (CreateAttempt) order() order     { return commit }
func (CancelAttempt) order() order     { return commit }
func (BeginConnection) order() order   { return commit }
func (Publish) order() order           { return commit }
func (EndConnection) order() order     { return commit }
func (DiscardSecret) order() order     { return discardSecret }
func (SubmitAttempt) order() order     { return submitAttempt }
func (DiscardConnection) order() order { return discardConnection }
func (RetireCredential) order() order  { return retireCredential }
func (CloseCredential) order() order   { return closeCredential }
func (ReleaseTarget) order() order     { return releaseTarget }
func (PauseWatches) order() order      { return pauseWatches }
func (EndWatches) order() order        { return endWatches }
func (ReportTarget) order() order      { return reportTarget }
func (Log) order() order               { return logged }
func (Record) order() order            { return recorded }
func (Notify) order() order            { return notify }
func (Wake) order() order              { return wake }

// IsCommit reports whether the driver carries out e under its lock.
func IsCommit(e Effect) bool { return e.order() == commit }

func sortEffects(effects []Effect) {
	slices.SortStableFunc(effects, func(a, b Effect) int { return cmp.Compare(a.order(), b.order()) })
}
