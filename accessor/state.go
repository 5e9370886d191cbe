package accessor

import (
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// Aliases of types in package watches, with the names that this package uses.
type (
	// Watcher describes what to watch, and the handler that receives the events.
	Watcher = watches.Watcher
	// ContentWatch describes the content whose kinds to watch, and the handler that receives the
	// events.
	ContentWatch = watches.ContentWatch
	// WatchState is a snapshot of one watch, as far as one informer serves it.
	WatchState = watches.WatchState
)

// ErrWatchConflict is the error of Watch and WatchContent for a name that is in use for another
// kind or scope.
var ErrWatchConflict = watches.ErrConflict

// ConnectionState is a snapshot of one extension's connection. ConnectionState holds no secret.
// Except for the errors and selectors in Scopes, ConnectionState shares nothing with the
// connection.
type ConnectionState struct {
	Extension client.ObjectKey
	UID       types.UID // of the extension
	// ObservedGeneration is the metadata.generation of the extension that the state is based on.
	ObservedGeneration int64
	Phase              connstate.Phase
	Reason             connstate.Reason // why there is no connection; "" while connected
	// Message states why there is no connection or, while connected, why the newest credential is
	// not in use. It is for people, and never contains a secret.
	Message string
	Since   time.Time // start of this phase
	// DisconnectedSince is since when there is no connection, zero while connected. A retry does not
	// change it.
	DisconnectedSince time.Time
	Created           time.Time // metadata.creationTimestamp of the extension
	// Identity is the user as the API server stated it, or zero while not connected. Under
	// impersonation the UID is that of the ServiceAccount.
	Identity connstate.Identity
	Target   string // the API server's URL; empty while unknown
	// Source is where the credential comes from: "serviceaccount ns/name" or "secret ns/name, key
	// k". It is empty while unknown.
	Source       string
	Epoch        int64     // number of connects so far
	TokenExpires time.Time // zero if the token does not expire
	// CredentialSince is since when the connection uses its credential, zero while not connected. A
	// renewed token is the same credential.
	CredentialSince time.Time
	Health          connstate.Health
	// Healthy reports whether there is a connection and its last probe succeeded. HealthSince is
	// since when Healthy is what it is.
	Healthy     bool
	HealthSince time.Time
	Watches     []WatchState // sorted by name, kind and scope
	// Scopes are the scopes of the connection's cache, sorted by kind and scope. It is empty while
	// not connected.
	Scopes []scopedcache.ScopeState
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
func (a *identityAccessor) state() ConnectionState {
	a.mu.Lock()
	state, published := a.stateLocked(), a.published.Load()
	a.mu.Unlock()
	state.Watches = a.watches.States()
	if conn := published.conn; conn != nil {
		state.Identity = conn.Identity()
		state.Scopes = conn.Scopes()
	}
	return state
}

// stateLocked returns the part of the state that the accessor itself determines: without identity,
// watches and scopes.
func (a *identityAccessor) stateLocked() ConnectionState {
	snap := a.machine.Snapshot(time.Now(), a.observedLocked())
	state := ConnectionState{Extension: a.key, Source: snap.Source, Phase: snap.Phase, Reason: snap.Reason,
		Since: snap.Since, DisconnectedSince: snap.DisconnectedSince, Epoch: snap.Epoch, Health: snap.Health,
		Healthy: snap.Healthy, HealthSince: snap.HealthSince, CredentialSince: snap.CredentialSince,
		Message:            connstate.ErrorText(snap.Err),
		ObservedGeneration: snap.Generation}
	if a.object != nil {
		state.UID, state.Created = a.object.GetUID(), a.object.GetCreationTimestamp().Time
	}
	if a.membership != nil {
		state.Target = a.membership.Host()
	}
	if current := a.credentials.get(snap.Credential); current != nil {
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
	if a.object == nil || snap.Proven {
		return nil, time.Time{}, false
	}
	return a.object, snap.LastSuccess, true
}
