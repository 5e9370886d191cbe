package healthprobe

import "github.com/latchkey-dev/latchkey/internal/connstate"

// State is the health of a connection, or of a target. It is a value; copies are independent.
type State = connstate.Health

// Options say how often to probe and when to give up.
type Options = connstate.ProbeOptions

// Identity is a user as the API server states it. The zero value means "not known".
type Identity = connstate.Identity

// Verdict is what the answer to a probe says about the API server and about the identity.
type Verdict = connstate.Verdict

const (
	// Silent means that no answer came: the connection was refused, hung or broke off, or the
	// server is not one that the target's certificate authorities vouch for.
	Silent = connstate.Silent
	// Valid means that the server stated the identity.
	Valid = connstate.Valid
	// Unauthorized means that the server does not accept the credential (401).
	Unauthorized = connstate.Unauthorized
	// Denied means that the server answers but refuses the review (403). A 403 says nothing about
	// the credential.
	Denied = connstate.Denied
	// Failing means that the server answers with an error of its own (429, 5xx), or with something
	// that no API server sends.
	Failing = connstate.Failing
)
