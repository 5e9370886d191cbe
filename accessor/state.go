package accessor

import (
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/degraded"
	"github.com/latchkey-dev/latchkey/internal/term"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// Snapshot is what the lifecycle machine says of a connection.
type Snapshot = lifecycle.Snapshot

// State is what is known of one extension's connection. State holds no secret. Except for Lease,
// its errors and the selectors in Scopes, State shares nothing with the connection.
type State struct {
	Snapshot
	Extension    client.ObjectKey
	UID          types.UID          // of the extension
	Created      time.Time          // metadata.creationTimestamp of the extension
	Term         int64              // the number of lease's term; 0 for none
	Lease        *fence.Term        // in which this replica acts for the extension; nil for any time
	Identity     connstate.Identity // as the API server stated it; zero while not connected
	Target       string             // the API server's URL; empty while unknown
	TokenExpires time.Time          // zero if the token does not expire
	Watches      []watches.WatchState
	Scopes       []scopedcache.ScopeState
	Permissions  *PermissionRecord // nil if none is kept
	Problems     []degraded.Problem
	SharedCache  string // names the cache that has the scopes and that others use, too; empty for none
}

// snapshot is the state of an accessor that getters read. A snapshot is immutable; a transition
// publishes another one.
type snapshot struct {
	phase  connstate.Phase
	reason connstate.Reason
	since  time.Time
	epoch  int64 // number of connects so far

	conn *connection.Connection       // not nil exactly if phase is Connected
	err  *connstate.NotConnectedError // not nil exactly if conn is nil

	// the clients of conn, once built; here too, to save getters one indirection
	builtClients atomic.Pointer[connection.Clients]
}

// clients returns the clients of the connection, built on first use.
func (s *snapshot) clients() (*connection.Clients, error) {
	if h := s.builtClients.Load(); h != nil {
		return h, nil
	}
	if s.conn == nil {
		return nil, s.err
	}
	h, err := s.conn.Clients()
	if err == nil {
		s.builtClients.Store(h)
	}
	return h, err
}

// state returns a snapshot of the connection.
func (a *identityAccessor) state() State {
	a.mu.Lock()
	state, published, record := a.stateLocked(), a.published.Load(), a.record
	mutedHere := a.mutedHereLocked()
	a.mu.Unlock()
	state.Permissions = record.uses()
	state.Watches = a.watches.States()
	if conn := published.conn; conn != nil {
		state.Identity = conn.Identity()
		state.Scopes = conn.Scopes()
		state.SharedCache = conn.SharedCache()
		state.Problems = a.problemsOf(&state, conn, mutedHere)
	}
	return state
}

// stateLocked returns the part of the state that the accessor itself determines: without identity,
// watches and scopes.
func (a *identityAccessor) stateLocked() State {
	state := State{
		Snapshot:  a.machine.Snapshot(time.Now(), a.observedLocked()),
		Extension: a.key,
		UID:       a.object.GetUID(),
		Created:   a.object.GetCreationTimestamp().Time,
		Term:      term.Count(a.lease),
		Lease:     a.term,
	}
	if a.membership != nil {
		state.Target = a.membership.Host()
	}
	if current := a.credentials.get(state.Credential); current != nil {
		state.TokenExpires = current.Expires()
	}
	return state
}

// stale returns why a caller whose object differs from that of the connection has none.
func (a *identityAccessor) stale(mismatch error) (connstate.Reason, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.machine.Stale(mismatch)
}

// unhealthy reports whether the extension is not connected or its last probe did not succeed. If
// so, since is the time of the last success. A probe that was throttled is no success either.
func (a *identityAccessor) unhealthy() (object client.Object, since time.Time, unhealthy bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	snap := a.machine.Snapshot(time.Now(), a.observedLocked())
	if snap.Proven {
		return nil, time.Time{}, false
	}
	return a.object, snap.LastSuccess, true
}
