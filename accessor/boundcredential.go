package accessor

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/credential"
)

// boundCredential is a credential and what carries its requests to a target. It never changes.
type boundCredential struct {
	id        lifecycle.CredentialID
	resolved  credential.Resolution
	cred      credential.Credential
	target    *targets.Target
	carrier   http.RoundTripper  // nil if it is what the target's members share
	transport *targets.Transport // under carrier, if it is ours to close
}

// openCredential opens the credential of resolved. The caller closes or retires it.
func openCredential(id lifecycle.CredentialID, resolved credential.Resolution, t *targets.Target) *boundCredential {
	b := &boundCredential{id: id, resolved: resolved, cred: resolved.Open(), target: t}
	switch carrier := b.cred.TransportRequirement(); {
	case carrier.Transport != nil:
		b.carrier = t.Observe(carrier.Transport)
	case carrier.Certificate != nil:
		b.transport = t.Certified(carrier.Certificate())
		b.carrier = b.transport.RoundTripper()
	}
	return b
}

// roundTripper sends requests as the credential's identity.
func (b *boundCredential) roundTripper(shared http.RoundTripper) http.RoundTripper {
	if b.carrier != nil {
		shared = b.carrier
	}
	return b.cred.RoundTripper(shared)
}

func (b *boundCredential) close() {
	b.cred.Close()
	if b.transport != nil {
		b.transport.Close()
	}
}

// retire closes a credential that another took the place of, after a while: a request may be about
// to use it, and what is under way on TCP connections of its own may end. Watches on those begin
// anew on the others, from where they were.
func (b *boundCredential) retire(life context.Context, after time.Duration) {
	ctx, cancel := context.WithTimeout(life, after)
	context.AfterFunc(ctx, func() {
		cancel()
		b.close()
	})
}

// openCredentials are the credentials of an accessor that are not closed: the one in use, and a
// newer one.
type openCredentials []*boundCredential

func (o *openCredentials) open(id lifecycle.CredentialID, resolution credential.Resolution, target *targets.Target) {
	*o = append(*o, openCredential(id, resolution, target))
}

// get returns an open credential, nil if it is not open.
func (o openCredentials) get(id lifecycle.CredentialID) *boundCredential {
	i := slices.IndexFunc(o, func(c *boundCredential) bool { return c.id == id })
	if i < 0 {
		return nil
	}
	return o[i]
}

// take removes a credential from those that are open, and returns it.
func (o *openCredentials) take(id lifecycle.CredentialID) *boundCredential {
	taken := o.get(id)
	*o = slices.DeleteFunc(*o, func(c *boundCredential) bool { return c == taken })
	return taken
}
