package connection

import (
	"context"
	"net/http"
	"time"

	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// Credential is an open credential together with the transport that carries its requests to a
// target. A Credential is immutable.
type Credential struct {
	resolution identity.Resolution
	identity.Credential
	target    *targets.Target
	carrier   http.RoundTripper  // nil for the transport that the target's members share
	transport *targets.Transport // below carrier; nil unless close must close it
}

// Bind binds a credential that was opened for resolution to a target. The caller closes or retires
// the result. Bind does not keep the means to open the credential again, because they may hold the
// secret.
func Bind(opened identity.Credential, resolution identity.Resolution, t *targets.Target) *Credential {
	b := &Credential{Credential: opened, resolution: resolution.WithoutOpen(), target: t}
	switch carrier := opened.TransportRequirement(); {
	case carrier.Transport != nil:
		b.carrier = t.Observe(carrier.Transport)
	case carrier.Certificate != nil:
		b.transport = t.Certified(carrier.Certificate())
		b.carrier = b.transport.RoundTripper()
	}
	return b
}

// OwnConnections reports whether requests use other TCP connections than the target's other
// members.
func (b *Credential) OwnConnections() bool { return b.transport != nil }

// RoundTripper returns a RoundTripper that sends requests as the credential's identity.
func (b *Credential) RoundTripper(shared http.RoundTripper) http.RoundTripper {
	if b.carrier != nil {
		shared = b.carrier
	}
	return b.Credential.RoundTripper(shared)
}

// ownRoundTripper returns a RoundTripper that sends requests as the credential's own user, nil if
// requests do not impersonate another user than that.
func (b *Credential) ownRoundTripper(shared http.RoundTripper) http.RoundTripper {
	impersonator, ok := b.Credential.(identity.Impersonator)
	if !ok {
		return nil
	}
	if b.carrier != nil {
		shared = b.carrier
	}
	return impersonator.OwnRoundTripper(shared)
}

// Close closes the credential and its own TCP connections.
func (b *Credential) Close() {
	b.Credential.Close()
	if b.transport != nil {
		b.transport.Close()
	}
}

// Retire closes a replaced credential after delay. The delay lets requests finish that are about to
// use the credential, or that are under way on its own TCP connections. Watches on those TCP
// connections resume on the new ones, where they stopped.
func (b *Credential) Retire(life context.Context, delay time.Duration) {
	ctx, cancel := context.WithTimeout(life, delay)
	context.AfterFunc(ctx, func() {
		cancel()
		b.Close()
	})
}
