package connstate

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Identity is a user as an API server reports it. The zero value means "not known".
type Identity struct {
	Username string
	UID      types.UID // empty for users that have none, such as those of client certificates
	Groups   []string
	// ImpersonatorUsername and ImpersonatorUID are the user whose credential impersonates the
	// identity, if the API server was asked for it too; otherwise empty.
	ImpersonatorUsername string
	ImpersonatorUID      types.UID
}

// Matches reports whether seen is acceptable where i is expected. Matches does not compare fields
// that are empty in i. Matches never compares groups, which may change while the identity stays the
// same, nor the impersonator.
func (i Identity) Matches(seen Identity) bool {
	return (i.Username == "" || i.Username == seen.Username) && (i.UID == "" || i.UID == seen.UID)
}

// Same reports whether seen has the same name and UID, and the same impersonator. Groups are not
// compared.
func (i Identity) Same(seen Identity) bool {
	return i.Username == seen.Username && i.UID == seen.UID && i.SameImpersonator(seen)
}

// SameImpersonator reports whether the same user impersonates seen, or none.
func (i Identity) SameImpersonator(seen Identity) bool {
	return i.ImpersonatorUsername == seen.ImpersonatorUsername && i.ImpersonatorUID == seen.ImpersonatorUID
}

// SameGroups reports whether seen has the same groups, in any order.
func (i Identity) SameGroups(seen Identity) bool {
	return slices.Equal(slices.Sorted(slices.Values(i.Groups)), slices.Sorted(slices.Values(seen.Groups)))
}

// Verdict is the result of a probe: the state of the API server and of the identity.
type Verdict int

const (
	// Silent means that there was no answer: the connection was refused, hung or broke off, or the
	// server's certificate failed verification against the target's certificate authorities.
	Silent Verdict = iota
	// Valid means that the server reported the identity.
	Valid
	// Unauthorized means that the server does not accept the credential (401).
	Unauthorized
	// Denied means that the server answers but refuses the review (403). A 403 implies nothing
	// about the credential.
	Denied
	// Failing means that the server answers with its own error (5xx), or with an answer that no API
	// server sends.
	Failing
	// Throttled means that the server answers, and refuses requests for now (429, or 503 with
	// Retry-After). It is evidence neither for nor against the identity.
	Throttled
)

// String returns the verdict's name, as in metrics.
func (v Verdict) String() string {
	return [...]string{"Silent", "Valid", "Unauthorized", "Denied", "Failing", "Throttled"}[v]
}

// Answered reports whether the server answered at all.
func (v Verdict) Answered() bool { return v != Silent }
