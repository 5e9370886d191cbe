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

// boundCredential is a credential together with the transport that carries its requests to a
// target. A boundCredential is immutable.
type boundCredential struct {
	id         lifecycle.CredentialID
	resolution credential.Resolution
	cred       credential.Credential
	target     *targets.Target
	carrier    http.RoundTripper  // nil for the transport that the target's members share
	transport  *targets.Transport // below carrier; nil unless close must close it
}

// openCredential opens the credential of resolution. The caller closes or retires the result.
func openCredential(id lifecycle.CredentialID, resolution credential.Resolution, t *targets.Target) *boundCredential {
	b := &boundCredential{id: id, resolution: resolution, cred: resolution.Open(), target: t}
	switch carrier := b.cred.TransportRequirement(); {
	case carrier.Transport != nil:
		b.carrier = t.Observe(carrier.Transport)
	case carrier.Certificate != nil:
		b.transport = t.Certified(carrier.Certificate())
		b.carrier = b.transport.RoundTripper()
	}
	return b
}

// roundTripper returns a RoundTripper that sends requests as the credential's identity.
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

// retire closes a replaced credential after delay. The delay lets requests finish that are about to
// use the credential, or that are under way on its own TCP connections. Watches on those TCP
// connections resume on the new ones, where they stopped.
func (b *boundCredential) retire(life context.Context, delay time.Duration) {
	ctx, cancel := context.WithTimeout(life, delay)
	context.AfterFunc(ctx, func() {
		cancel()
		b.close()
	})
}

// openCredentials holds the open credentials of an accessor: the one in use, and a newer one.
type openCredentials []*boundCredential

func (o *openCredentials) open(id lifecycle.CredentialID, resolution credential.Resolution, target *targets.Target) {
	*o = append(*o, openCredential(id, resolution, target))
}

// get returns the open credential with that ID, nil if there is none.
func (o openCredentials) get(id lifecycle.CredentialID) *boundCredential {
	i := slices.IndexFunc(o, func(c *boundCredential) bool { return c.id == id })
	if i < 0 {
		return nil
	}
	return o[i]
}

// take removes a credential from the open credentials, and returns the credential.
func (o *openCredentials) take(id lifecycle.CredentialID) *boundCredential {
	removed := o.get(id)
	*o = slices.DeleteFunc(*o, func(c *boundCredential) bool { return c == removed })
	return removed
}
