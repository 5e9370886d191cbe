package credential

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/internal/identity"
)

// pinnedToken is the credential of one extension at a remote API server: one token, which no
// renewed one replaces. A renewed token is another version of the Resolution, so the server must
// state the same identity for it first. A token that works is thus never given up for one that does
// not, as after a signing key that the server does not know yet.
type pinnedToken struct {
	id      tokenID
	token   *token
	targets *tokenTargets
	target  *tokenTarget
	closed  atomic.Bool

	occupies bool // guarded by tokenTargets.mu; see tokenTargets.occupy

	pinned       atomic.Pointer[issuedToken]
	refused      atomic.Bool // the server refused pinned
	unauthorized atomic.Bool // the server's last answer was a 401
}

var _ identity.Credential = (*pinnedToken)(nil)

// errNotTakenUp is why a request has no token although there is a newer one.
var errNotTakenUp = errors.Wrap(ErrInvalidCredential,
	"the API server has not stated the same identity for a newer token")

// errBeingRequested is why a request has no token while a newer one is requested.
var errBeingRequested = errors.New("a newer token is being requested")

// Prepare implements Credential. It pins the newest token, unless the pinned one is still valid and
// was not refused.
func (p *pinnedToken) Prepare(ctx context.Context) error {
	if p.closed.Load() {
		return errClosed
	}
	if err := p.targets.occupy(p); err != nil {
		return err
	}
	now := time.Now()
	pinned, newest := p.pinned.Load(), p.token.current.Load()
	if pinned.valid(now) && (!p.refused.Load() || !newest.valid(now)) {
		return nil
	}
	newest, err := p.token.get(ctx, true)
	if err != nil {
		return err
	}
	if newest != pinned {
		p.refused.Store(false)
		p.pinned.Store(newest)
	}
	return nil
}

// get implements tokenSource. After a machine has slept, a request may notice before the clock that
// the token is to be renewed.
func (p *pinnedToken) get(context.Context) (*issuedToken, error) {
	if p.closed.Load() {
		return nil, errClosed
	}
	now := time.Now()
	p.token.freshen(now)
	pinned := p.pinned.Load()
	if pinned.valid(now) {
		return pinned, nil
	}
	failed := p.token.lastFailure.Load()
	switch newest := p.token.current.Load(); {
	case newest.valid(now) && newest != pinned:
		return nil, p.token.noTokenError(pinned, errNotTakenUp)
	case failed != nil:
		return nil, p.token.noTokenError(pinned, failed.err)
	}
	return nil, p.token.noTokenError(pinned, errBeingRequested)
}

// replacement implements tokenSource. A 401 ends the connection, and the next one gets the newest
// token.
func (*pinnedToken) replacement(context.Context, *issuedToken) *issuedToken { return nil }

// answered implements tokenSource. Other errors may be from before the server has looked at the
// token.
func (p *pinnedToken) answered(token *issuedToken, status int) {
	switch {
	case status == http.StatusUnauthorized:
		p.unauthorized.Store(true)
	case status < http.StatusMultipleChoices:
		p.unauthorized.Store(false)
		p.target.accepted(p.id, token, time.Now())
	}
}

// TransportRequirement implements Credential.
func (*pinnedToken) TransportRequirement() identity.TransportRequirement {
	return identity.TransportRequirement{}
}

// RoundTripper implements Credential.
func (p *pinnedToken) RoundTripper(next http.RoundTripper) http.RoundTripper {
	return &bearer{tokens: p, next: next}
}

// Expires implements Credential.
func (p *pinnedToken) Expires() time.Time { return p.pinned.Load().expires() }

// Discard implements Credential. The token stays until there is a newer one, which the next connect
// takes. If there is none, one is requested, unless the server seems to refuse all tokens: it must
// not cause a TokenRequest for each tenant. A server that accepts the token and states another
// identity would state it for a newer one, too.
func (p *pinnedToken) Discard(before time.Time) {
	pinned := p.pinned.Load()
	if pinned == nil || !pinned.requestedAt.Before(before) || !p.unauthorized.Load() {
		return
	}
	p.refused.Store(true)
	if p.token.current.Load() == pinned && p.target.mayReplace(p.id, pinned, time.Now()) {
		p.token.renew(context.Background(), pinned) // its span is its own
	}
}

// Close implements Credential.
func (p *pinnedToken) Close() {
	if p.closed.CompareAndSwap(false, true) {
		p.pinned.Store(nil)
		p.targets.close(p)
	}
}
