package degraded

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// Reason is one word for why work may not get done although there is a connection.
//
// To add a Reason: declare it here, and add it to Reasons and, if a tenant can cause it, to
// ByTenants. Export it in clustercache/problems.go, and say what to do about it in the second table
// below "Reasons" of docs/operations.md. Then run make generate.
type Reason string

const (
	// ProbesFailing means: the API server did not state the identity when it was asked last.
	ProbesFailing Reason = "ProbesFailing"
	// ScopesFailing means: informers get errors. Reads return what was known before.
	ScopesFailing Reason = "ScopesFailing"
	// CredentialNotUsed means: there is a newer credential, which cannot be used.
	CredentialNotUsed Reason = "CredentialNotUsed"
	// ScopesForbidden means: the identity may not list or watch what is read or watched.
	ScopesForbidden Reason = "ScopesForbidden"
	// RequestsRefused means: requests were refused for lack of a permission, less than RefusedFor
	// ago, and not granted since.
	RequestsRefused Reason = "RequestsRefused"
	// KindsNotServed means: the API server does not serve a kind that is read or watched.
	KindsNotServed Reason = "KindsNotServed"
)

// Reasons are all reasons, the worst one first.
var Reasons = []Reason{ProbesFailing, ScopesFailing, CredentialNotUsed, ScopesForbidden, RequestsRefused,
	KindsNotServed}

// ByTenants are the reasons that a tenant causes, and that can be muted.
var ByTenants = []Reason{CredentialNotUsed, ScopesForbidden, RequestsRefused, KindsNotServed}

// Problem is why work may not get done although there is a connection.
type Problem struct {
	Reason  Reason
	Message string
	Since   time.Time
	// Muted says that the extension does not count as degraded because of it.
	Muted bool
}

// Fault is a part of the work that does not get done, and why.
type Fault struct {
	What, Why string // either may be empty
	Since     time.Time
}

// Facts are what is known of an extension that is connected.
type Facts struct {
	Probe      []Fault // the last probe, if it was no success
	Credential []Fault // the newest credential, if it is not used
	Refused    []Fault // requests
	// Failing, Forbidden and NotServed are scopes of the cache.
	Failing, Forbidden, NotServed []Fault
	// Muted are the reasons of the options, and MutedHere the value of the extension's annotation.
	Muted     []Reason
	MutedHere string
}

// MuteAll mutes all reasons of ByTenants, in the annotation.
const MuteAll = "all"

// Problems returns what is wrong: for each reason one problem at most, those that are not muted
// first, and the worst one first.
func Problems(f Facts) (all []Problem) {
	faults := map[Reason][]Fault{
		ProbesFailing:     f.Probe,
		ScopesFailing:     f.Failing,
		CredentialNotUsed: f.Credential,
		ScopesForbidden:   f.Forbidden,
		RequestsRefused:   f.Refused,
		KindsNotServed:    f.NotServed,
	}
	mutedHere := mutedBy(f.MutedHere)
	for _, reason := range Reasons {
		list := faults[reason]
		if len(list) == 0 {
			continue
		}
		slices.SortStableFunc(list, func(x, y Fault) int { // the same message as long as the same is wrong
			return cmp.Or(x.Since.Compare(y.Since), strings.Compare(x.What, y.What))
		})
		muted := slices.Contains(ByTenants, reason) &&
			(slices.Contains(f.Muted, reason) || slices.Contains(mutedHere, reason))
		all = append(all, Problem{reason, messageOf(list), sinceOf(list), muted})
	}
	slices.SortStableFunc(all, func(x, y Problem) int { return cmp.Compare(place(x.Muted), place(y.Muted)) })
	return all
}

func place(muted bool) int {
	if muted {
		return 1
	}
	return 0
}

// maxMuted is the longest value of the annotation that counts: a tenant chooses it.
const maxMuted = 256

// mutedBy returns the reasons in the value of the annotation.
func mutedBy(value string) (reasons []Reason) {
	if value == "" || len(value) > maxMuted {
		return nil
	}
	for _, word := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }) {
		if word == MuteAll {
			return ByTenants
		}
		reasons = append(reasons, Reason(word))
	}
	return reasons
}

// messageOf returns the first fault, and how many more there are.
func messageOf(faults []Fault) string {
	text := faults[0].What
	switch why := faults[0].Why; {
	case text == "":
		text = why
	case why != "":
		text += ": " + why
	}
	text = untrusted.Shorten(text)
	if more := len(faults) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// sinceOf returns when the first fault began.
func sinceOf(faults []Fault) (since time.Time) {
	for _, fault := range faults {
		if since.IsZero() || !fault.Since.IsZero() && fault.Since.Before(since) {
			since = fault.Since
		}
	}
	return since
}

// Is reports whether an extension with these problems is degraded: the first one is not muted then.
func Is(problems []Problem) bool { return len(problems) > 0 && !problems[0].Muted }
