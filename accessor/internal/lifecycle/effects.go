package lifecycle

import (
	"cmp"
	"slices"
	"time"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// Effect is an action that the driver must carry out. Step returns the effects in the order in
// which the driver must carry them out: first those for which [IsCommit] is true, then the others.
type Effect interface{ order() order }

// AttemptKind is the kind of an attempt.
type AttemptKind int

const (
	// Connect obtains a credential and asks the API server which identity the credential belongs
	// to.
	Connect AttemptKind = iota + 1
	// Probe asks the API server whether it still states the same identity.
	Probe
	// Verify asks the API server which identity a newer credential belongs to.
	Verify
)

// Commit effects.
type (
	// AdoptTarget makes the target of the Resolved event the target of the connection.
	AdoptTarget struct{ Target TargetID }
	// OpenCredential opens the credential of the Resolved event under this ID.
	OpenCredential struct{ Credential CredentialID }
	// UseCredential makes requests of the connection use this credential.
	UseCredential struct{ Credential CredentialID }
	// CreateAttempt creates an attempt, which SubmitAttempt starts.
	CreateAttempt struct {
		Attempt    AttemptID
		Kind       AttemptKind
		Credential CredentialID
		Epoch      int64 // epoch of the connection that a Connect creates
		Urgent     bool  // runs before other attempts at the same target
		Deferred   bool  // runs after other attempts at the same target
	}
	// CancelAttempt cancels an attempt, whose answer does not count any more.
	CancelAttempt struct{ Attempt AttemptID }
	// BeginConnection makes the connection that the attempt created the current one. Watches
	// receive the connection before all other users.
	BeginConnection struct{ Attempt AttemptID }
	// Publish sets the state that getters return.
	Publish struct {
		Phase             connstate.Phase
		Reason            connstate.Reason
		Since             time.Time // of the phase
		DisconnectedSince time.Time // since when there is no connection; zero if there is one
		Epoch             int64
		Cause             error
	}
	// EndConnection ends the connection. Its error is the state that was published last.
	EndConnection struct{}
	// Unregister makes the extension unknown, so that another machine can be created for it. NotOwned:
	// it exists, and another replica is to have it.
	Unregister struct{ NotOwned bool }
	// RefuseRequests makes requests that have not started fail with the state that was published
	// last.
	RefuseRequests struct{}
	// EndTerm ends the requests that still need the machine's term.
	EndTerm struct{}
)

// After effects.
type (
	// DiscardSecret discards a secret that was obtained before the given time, because the server
	// did not accept the secret.
	DiscardSecret struct {
		Credential CredentialID
		Before     time.Time
	}
	// SubmitAttempt starts the attempt.
	SubmitAttempt struct{ Attempt AttemptID }
	// DiscardConnection closes the connection that the attempt created, because it will not be
	// used.
	DiscardConnection struct {
		Attempt AttemptID
		Reason  connstate.Reason
		Cause   error
	}
	// RetireCredential closes a credential after a delay, because requests may still use the
	// credential.
	RetireCredential struct{ Credential CredentialID }
	// CloseCredential closes a credential.
	CloseCredential struct{ Credential CredentialID }
	// ReleaseTarget releases the target, which the connection does not use any more.
	ReleaseTarget struct{ Target TargetID }
	// PauseWatches detaches the watches from the connection that ended.
	PauseWatches struct{}
	// EndWatches ends the watches permanently.
	EndWatches struct{}
	// AwaitAnswers makes the driver report RequestsAnswered, or NoMoreTime at Until.
	AwaitAnswers struct{ Until time.Time }
	// AwaitTasks makes the driver report TasksEnded, after Timeout at the latest.
	AwaitTasks struct{ Timeout time.Duration }
	// Left answers those who wait until nothing of the extension runs here any more.
	Left struct{ Clean bool }
	// ReportTarget reports to the target whether the target answered.
	ReportTarget struct {
		Target   TargetID
		Answered bool
		Asked    time.Time
		ForAll   bool // the target requested the probe; silence counts as a failure of the target
		Err      error
	}
	// ReportIdentity reports to the connection's siblings what a review proved. Verified is when the
	// server stated the identity. Verified is zero if the server rejected the credential, or stated
	// another identity: each sibling then asks for itself.
	ReportIdentity struct{ Verified time.Time }
	// Log writes a log line. Epoch is the epoch of the connection that the line is about.
	Log struct {
		Message string
		Verbose bool
		Epoch   int64
		Reason  connstate.Reason
		Err     error
	}
	// Record increments a counter.
	Record struct {
		Counter Counter
		Result  string
	}
	// Notify notifies the extension sources.
	Notify struct{}
	// Wake makes the driver resolve the extension soon, because the deadline is now earlier.
	Wake struct{}
)

// Counter identifies one of the exported counters.
type Counter int

const (
	// Connects counts connects by reason, or Connected.
	Connects Counter = iota + 1
	// Probes counts probes by verdict.
	Probes
	// Rotations counts newer credentials by result.
	Rotations
	// GivenUp counts extensions that were given up.
	GivenUp
)

// The messages of Log.
const (
	MessageConnected    = "Connected"
	MessageNotConnected = "Not connected"
	MessageConnectFail  = "Connect failed"
	MessageNotUsed      = "Newest credential not used"
	MessageTakenUp      = "Took up a newer credential"
)

// order is the position of an effect among the effects of a step.
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
	reportIdentity
	logged
	recorded
	notify
	await
	left
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
func (Unregister) order() order        { return commit }
func (RefuseRequests) order() order    { return commit }
func (EndTerm) order() order           { return commit }
func (DiscardSecret) order() order     { return discardSecret }
func (SubmitAttempt) order() order     { return submitAttempt }
func (DiscardConnection) order() order { return discardConnection }
func (RetireCredential) order() order  { return retireCredential }
func (CloseCredential) order() order   { return closeCredential }
func (ReleaseTarget) order() order     { return releaseTarget }
func (PauseWatches) order() order      { return pauseWatches }
func (EndWatches) order() order        { return endWatches }
func (ReportTarget) order() order      { return reportTarget }
func (ReportIdentity) order() order    { return reportIdentity }
func (Log) order() order               { return logged }
func (Record) order() order            { return recorded }
func (Notify) order() order            { return notify }
func (AwaitAnswers) order() order      { return await }
func (AwaitTasks) order() order        { return await }
func (Left) order() order              { return left }
func (Wake) order() order              { return wake }

// IsCommit reports whether the driver carries out e under its lock.
func IsCommit(e Effect) bool { return e.order() == commit }

func sortEffects(effects []Effect) {
	slices.SortStableFunc(effects, func(a, b Effect) int { return cmp.Compare(a.order(), b.order()) })
}
