package clustercache

import (
	"cmp"
	"slices"
	"time"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/internal/degraded"
)

// Problem is why work may not get done although there is a connection.
type Problem struct {
	// Reason is why, in one word.
	Reason ProblemReason `json:"reason"`
	// Message is for people, and never contains a secret.
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	// Muted says that the extension does not count as degraded because of it; see MuteAnnotation.
	Muted bool `json:"muted,omitempty"`
}

func problemsOf(problems []degraded.Problem) (all []Problem) {
	for _, problem := range problems {
		all = append(all, Problem(problem))
	}
	return all
}

// ProblemReason is one word for a Problem.
type ProblemReason = degraded.Reason

// Reasons of a Problem, the worst one first. docs/operations.md says what to do for each.
const (
	// ProblemProbesFailing: the API server did not state the identity when it was asked last.
	ProblemProbesFailing = degraded.ProbesFailing
	// ProblemScopesFailing: informers get errors; reads return what was known before.
	ProblemScopesFailing = degraded.ScopesFailing
	// ProblemCredentialNotUsed: there is a newer credential, which cannot be used.
	ProblemCredentialNotUsed = degraded.CredentialNotUsed
	// ProblemScopesForbidden: the identity may not list or watch what is read or watched.
	ProblemScopesForbidden = degraded.ScopesForbidden
	// ProblemRequestsRefused: requests were refused for lack of a permission in the last ten
	// minutes, and not granted since.
	ProblemRequestsRefused = degraded.RequestsRefused
	// ProblemKindsNotServed: the API server does not serve a kind that is read or watched.
	ProblemKindsNotServed = degraded.KindsNotServed
)

// MuteAnnotation is an annotation of extensions. Its value has reasons of problems that a tenant
// causes (CredentialNotUsed, ScopesForbidden, RequestsRefused, KindsNotServed), with commas
// between, or "all" for all four: the extension does not count as degraded because of them. They
// are shown as muted. Other words mute nothing.
const MuteAnnotation = accessor.MuteAnnotation

// ProblemOptions configure what counts as degraded.
type ProblemOptions struct {
	// Mute has reasons that a tenant causes, for all extensions; see MuteAnnotation.
	Mute []ProblemReason
	// IgnoreAnnotation keeps extensions from muting anything by MuteAnnotation.
	IgnoreAnnotation bool
}

func (o *ProblemOptions) check() error {
	for _, reason := range o.Mute {
		if !slices.Contains(degraded.ByTenants, reason) {
			return errors.Errorf("Options.Problems.Mute: %q is not one of %v, which tenants cause", reason, degraded.ByTenants)
		}
	}
	return nil
}

// Degraded returns the worst problem that is not muted, and since when there is such a problem; nil
// if there is none, and while the extension is not connected. A connection that is degraded is
// there, and can be used: Degraded says that some of the work does not get done.
func (s *ConnectionState) Degraded() (worst *Problem, since time.Time) {
	for n := range s.Problems {
		problem := &s.Problems[n]
		if problem.Muted {
			break
		}
		if worst == nil {
			worst = problem
		}
		if since.IsZero() || !problem.Since.IsZero() && problem.Since.Before(since) {
			since = problem.Since
		}
	}
	return worst, since
}

// States of a Summary.
const (
	SummaryConnected    = "Connected"    // there is a connection, and no problem that is not muted
	SummaryDegraded     = "Degraded"     // there is a connection, and a problem that is not muted
	SummaryConnecting   = "Connecting"   // the first connect is in progress
	SummaryDisconnected = "Disconnected" // there is none, also while it is tried again
)

// Summary is a ConnectionState in short, for people. Programs use Phase: a connection that is
// degraded can be used.
type Summary struct {
	// State is SummaryConnected, SummaryDegraded, SummaryConnecting or SummaryDisconnected.
	State string
	// Reason and Message are why: of the phase or, if the extension is degraded, of the worst
	// problem. Reason is a Reason or a ProblemReason.
	Reason, Message string
	// Since is since when there is the connection, or none, or since when it is degraded. A retry
	// does not change it.
	Since time.Time
}

// Summary returns the state in short.
func (s *ConnectionState) Summary() Summary {
	short := Summary{
		State:   SummaryDisconnected,
		Reason:  string(s.Reason),
		Message: s.Message,
		Since:   cmp.Or(s.DisconnectedSince, s.Since),
	}
	worst, since := s.Degraded()
	switch {
	case worst != nil:
		return Summary{SummaryDegraded, string(worst.Reason), worst.Message, cmp.Or(since, s.Since)}
	case s.Phase == PhaseConnected:
		short.State = SummaryConnected
	case s.Starting():
		short.State = SummaryConnecting
	}
	return short
}
