package credential

import (
	"context"
	"maps"
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
	all.renewed = t.renewed
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
		return errors.Wrapf(ErrNotAllowed, "the audience %s is still in use for another API server",
			untrusted.Quote(p.id.audience))
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

// use records that the extension acts with that token, and returns its version.
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
	return strconv.FormatInt(t.all.version(id), 10)
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

// run has extensions woken for each renewed token, until ctx is done.
func (t *tokenTargets) run(ctx context.Context, wake func(client.ObjectKey)) {
	t.mu.Lock()
	t.wake = wake
	t.mu.Unlock()
	<-ctx.Done()
	t.mu.Lock()
	t.wake = nil
	t.mu.Unlock()
}

// renewed wakes the extensions that act with the token: there is a newer one.
func (t *tokenTargets) renewed(id tokenID) {
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
// server accepts, and none for a while if it refuses one. So a server that refuses all, as after a
// restart while the issuer is away, costs a few TokenRequests, and after the signing key was
// replaced all tokens are new within a few attempts to connect. The rule is that of TCP's slow
// start. A ServiceAccount whose trial failed waits longer each time, so that others have theirs.
type tokenTarget struct {
	users int // guarded by tokenTargets.mu

	trying atomic.Bool // there may be trials

	mu     sync.Mutex
	ends   time.Time          // guarded by mu; the end of the round
	wait   time.Duration      // guarded by mu; from the beginning of the round to its end
	window int                // guarded by mu; how many trials the round may have
	used   int                // guarded by mu; how many it has had
	trials map[tokenID]*trial // guarded by mu; the last of each ServiceAccount, for a while
}

// trial is a token that was requested in place of one that the server refused.
type trial struct {
	at                time.Time // when it was allowed
	accepted, refused bool
	failures          int       // refused trials, one after the other
	until             time.Time // when the next may be
}

// over reports whether the trial says nothing any more.
func (t *trial) over(now time.Time) bool { return now.Sub(t.at) > trialMost && !now.Before(t.until) }

// accepted records that the server accepts the token.
func (t *tokenTarget) accepted(id tokenID, token *issuedToken, now time.Time) {
	if !t.trying.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.trials[id]
	if last == nil || last.accepted || last.refused || token.requestedAt.Before(last.at) || !now.Before(t.ends) {
		return
	}
	last.accepted = true
	t.window, t.used = min(2*t.window, trialsAtOnce), 0
	if more := now.Add(trialFirst); more.After(t.ends) {
		t.ends = more
	}
}

// mayReplace reports whether a newer token may be requested in place of one that the server
// refuses.
func (t *tokenTarget) mayReplace(id tokenID, refused *issuedToken, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.trials[id]
	if last != nil && last.over(now) {
		last = nil
	}
	if last != nil && !last.refused && !refused.requestedAt.Before(last.at) {
		last.refused = true
		last.until = now.Add(min(trialFirst<<min(last.failures, 10), trialMost))
		last.failures++
		t.window, t.used = 1, 1 // none until the end of the round
	}
	if !now.Before(t.ends) {
		t.beginLocked(now)
	}
	if t.used >= t.window || refused.age(now) < youngToken {
		return false
	}
	next := &trial{at: now}
	if last != nil {
		if now.Before(last.until) || now.Sub(last.at) < trialFirst {
			return false
		}
		next.failures = last.failures
	}
	t.used++
	t.trials[id] = next
	t.trying.Store(true)
	return true
}

// beginLocked begins a round of trials.
func (t *tokenTarget) beginLocked(now time.Time) {
	if now.Sub(t.ends) > trialMost {
		t.wait = 0
	}
	t.wait = min(max(2*t.wait, trialFirst), trialMost)
	t.ends, t.window, t.used = now.Add(t.wait), 1, 0
	if t.trials == nil {
		t.trials = map[tokenID]*trial{}
	}
	maps.DeleteFunc(t.trials, func(_ tokenID, last *trial) bool { return last.over(now) })
	t.trying.Store(len(t.trials) > 0)
}
