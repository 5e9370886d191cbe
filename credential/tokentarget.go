package credential

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// tokenTargets has the tokens for remote API servers, and the extensions that use them.
type tokenTargets struct {
	all *tokens

	mu          sync.Mutex
	wake        func(client.ObjectKey)                 // guarded by mu; nil before run
	byExtension map[client.ObjectKey]tokenID           // guarded by mu
	extensions  map[tokenID]sets.Set[client.ObjectKey] // guarded by mu; the inverse
	targets     map[string]*tokenTarget                // guarded by mu; by tokenID.target; only those with users
	audiences   map[string]*audienceUse                // guarded by mu; only those with users that have an owner
}

// audienceUse is an audience whose tokens are in use.
type audienceUse struct {
	owner string
	users int
}

func newTokenTargets(all *tokens) *tokenTargets {
	t := &tokenTargets{
		all:         all,
		byExtension: map[client.ObjectKey]tokenID{},
		extensions:  map[tokenID]sets.Set[client.ObjectKey]{},
		targets:     map[string]*tokenTarget{},
		audiences:   map[string]*audienceUse{},
	}
	all.minted = t.minted
	return t
}

// open returns the credential of one connection.
func (t *tokenTargets) open(id tokenID) identity.Credential {
	p := &pinnedToken{id: id, token: t.all.acquire(id), targets: t}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.target = t.targets[id.target]; p.target == nil {
		p.target = &tokenTarget{}
		t.targets[id.target] = p.target
	}
	p.target.users++
	return p
}

// occupy makes the credential one of those for whose API server the audience is in use. It returns
// an error while the audience is in use for another one.
func (t *tokenTargets) occupy(p *pinnedToken) error {
	if p.id.owner == "" {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	use := t.audiences[p.id.audience]
	switch {
	case p.closed.Load():
		return errClosed
	case p.occupies:
		return nil
	case use == nil:
		use = &audienceUse{owner: p.id.owner}
		t.audiences[p.id.audience] = use
	case use.owner != p.id.owner:
		return errors.Wrapf(ErrNotAllowed, "the audience %s is still in use for the API server at %s",
			untrusted.Quote(p.id.audience), use.owner)
	}
	use.users++
	p.occupies = true
	return nil
}

func (t *tokenTargets) close(p *pinnedToken) {
	t.all.close(p.token)
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.target.users--; p.target.users == 0 {
		delete(t.targets, p.id.target)
	}
	if !p.occupies {
		return
	}
	use := t.audiences[p.id.audience]
	if use.users--; use.users == 0 {
		delete(t.audiences, p.id.audience)
	}
}

// use records that the extension acts with that token, and returns the version of the newest one.
func (t *tokenTargets) use(extension client.ObjectKey, id tokenID) (version string) {
	t.mu.Lock()
	if t.byExtension[extension] != id {
		t.forgetLocked(extension)
		t.byExtension[extension] = id
		if t.extensions[id] == nil {
			t.extensions[id] = sets.Set[client.ObjectKey]{}
		}
		t.extensions[id].Insert(extension)
	}
	t.mu.Unlock()
	return strconv.FormatInt(t.all.serial(id), 10)
}

func (t *tokenTargets) forget(extension client.ObjectKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked(extension)
}

func (t *tokenTargets) forgetLocked(extension client.ObjectKey) {
	id, known := t.byExtension[extension]
	if !known {
		return
	}
	delete(t.byExtension, extension)
	if t.extensions[id].Delete(extension); len(t.extensions[id]) == 0 {
		delete(t.extensions, id)
	}
}

// run has extensions woken for each token, until ctx is done.
func (t *tokenTargets) run(ctx context.Context, wake func(client.ObjectKey)) {
	t.mu.Lock()
	t.wake = wake
	t.mu.Unlock()
	<-ctx.Done()
	t.mu.Lock()
	t.wake = nil
	t.mu.Unlock()
}

// minted wakes the extensions that act with the token: there is a newer one.
func (t *tokenTargets) minted(id tokenID) {
	t.mu.Lock()
	wake, extensions := t.wake, t.extensions[id].UnsortedList()
	t.mu.Unlock()
	if wake == nil {
		return
	}
	for _, extension := range extensions {
		wake(extension)
	}
}

const (
	// trialFirst and trialMost are the limits of the time between two rounds of trials. It doubles
	// with each round in which no token was accepted.
	trialFirst, trialMost = 10 * time.Second, 5 * time.Minute
	// trialsAtOnce is the maximum number of trials at a time.
	trialsAtOnce = 512
)

// tokenTarget is a remote API server that tokens are for. It decides how many tokens are requested
// in place of those that the server refuses: one as a trial, twice as many with each one that the
// server accepts, and none for a while if it accepts none. So a server that refuses all, as after a
// restart while the issuer is away, costs a few TokenRequests, and after the signing key was
// replaced all tokens are new within a few attempts to connect. The rule is that of TCP's slow
// start.
type tokenTarget struct {
	users int // guarded by tokenTargets.mu

	newest atomic.Int64 // when the newest token that the server has accepted was requested, in nanoseconds

	mu     sync.Mutex
	began  time.Time     // guarded by mu; a token that was requested since then is a trial
	ends   time.Time     // guarded by mu; the end of the round
	wait   time.Duration // guarded by mu; from the beginning of the round to its end
	window int           // guarded by mu; how many trials may be under way
	used   int           // guarded by mu; how many are
}

// accepted records that the server accepts the token.
func (t *tokenTarget) accepted(token *issuedToken, now time.Time) {
	requested, newest := token.requestedAt.UnixNano(), t.newest.Load()
	if requested <= newest || !t.newest.CompareAndSwap(newest, requested) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !token.requestedAt.Before(t.began) && now.Before(t.ends) {
		t.window, t.used = min(2*t.window, trialsAtOnce), 0
		t.wait, t.ends = trialFirst, now.Add(trialFirst)
	}
}

// mayReplace reports whether a newer token may be requested in place of one that the server
// refuses.
func (t *tokenTarget) mayReplace(refused *issuedToken, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !now.Before(t.ends) {
		if now.Sub(t.ends) > trialMost {
			t.wait = 0
		}
		t.wait = min(max(2*t.wait, trialFirst), trialMost)
		t.began, t.ends, t.window, t.used = now, now.Add(t.wait), 1, 0
	} else if !refused.requestedAt.Before(t.began) {
		t.window = 1 // a trial has failed
	}
	if t.used >= t.window {
		return false
	}
	t.used++
	return true
}
