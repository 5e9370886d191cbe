package accessor

import (
	"slices"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// openCredentials holds the open credentials of an accessor: the one in use, and a newer one.
type openCredentials []openCredential

type openCredential struct {
	id lifecycle.CredentialID
	*connection.Credential
}

func (o *openCredentials) open(id lifecycle.CredentialID, resolution identity.Resolution, target *targets.Target) {
	*o = append(*o, openCredential{id, connection.Bind(resolution.Open(), resolution, target)})
}

// get returns the open credential with that ID, nil if there is none.
func (o openCredentials) get(id lifecycle.CredentialID) *connection.Credential {
	i := slices.IndexFunc(o, func(c openCredential) bool { return c.id == id })
	if i < 0 {
		return nil
	}
	return o[i].Credential
}

// take removes a credential from the open credentials, and returns the credential.
func (o *openCredentials) take(id lifecycle.CredentialID) *connection.Credential {
	removed := o.get(id)
	*o = slices.DeleteFunc(*o, func(c openCredential) bool { return c.Credential == removed })
	return removed
}
