package healthprobe

import "github.com/latchkey-dev/latchkey/internal/connstate"

// State is the health of a connection, or of a target. State is a value, so copies are independent.
type State = connstate.Health

// Options configure how often to probe and when to disconnect.
type Options = connstate.ProbeOptions

// Identity is a user as the API server states it. The zero value means "not known".
type Identity = connstate.Identity

// Verdict classifies the outcome of a probe, for the API server and for the identity.
type Verdict = connstate.Verdict

const (
	// Silent means that no answer arrived. Either the connection was refused, hung or broke, or the
	// target's certificate authorities do not verify the server's certificate.
	Silent = connstate.Silent
	// Valid means that the server stated the identity.
	Valid = connstate.Valid
	// Unauthorized means that the server does not accept the credential (401).
	Unauthorized = connstate.Unauthorized
	// Denied means that the server answers but denies the review (403). A 403 proves nothing about
	// the credential.
	Denied = connstate.Denied
	// Failing means that the server answers with an error of its own (429, 5xx), or with an answer
	// that no API server sends.
	Failing = connstate.Failing
)
