package accessor

import (
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/watches"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// What package watches declares, by the names under which it is known here.
type (
	// Watcher says what to watch and who is told.
	Watcher = watches.Watcher
	// ContentWatch says of what content to watch the kinds, and who is told.
	ContentWatch = watches.ContentWatch
	// WatchState is a snapshot of one informer's worth of watch.
	WatchState = watches.WatchState
)

// ErrWatchConflict is returned by Watch and WatchContent for a name that is in use for another kind
// or scope.
var ErrWatchConflict = watches.ErrConflict

// ConnectionState is a snapshot of one extension's connection. It holds no secret, and but for the
// errors and selectors in Scopes it shares nothing with the connection.
type ConnectionState struct {
	Extension client.ObjectKey
	UID       types.UID // of the extension
	// ObservedGeneration is the metadata.generation of the extension that this is about.
	ObservedGeneration int64
	Phase              Phase
	Reason             Reason // why not connected; "" when connected
	// for a person: why not connected, or why the newest credential is not in use; never a secret
	Message string
	Since   time.Time // of this phase
	// as verified (under impersonation the UID is that of the ServiceAccount); zero while not
	// connected
	Identity Identity
	Target   string // the API server's URL; empty while it is not known
	// of the credential: "serviceaccount ns/name" or "secret ns/name, key k"; empty while it is not
	// known
	Source       string
	Generation   int64     // counts connects
	TokenExpires time.Time // zero if it does not expire
	Health       HealthCheckingState
	Watches      []WatchState // sorted by name, kind and scope
	// of the connection's cache, sorted by kind and scope; empty while not connected
	Scopes []scopedcache.ScopeState
}

// snapshot is the state of an accessor that getters see. What it says never changes; a transition
// publishes another.
type snapshot struct {
	phase  Phase
	reason Reason
	since  time.Time
	epoch  int64 // counts connects

	conn *connection        // set exactly when phase is Connected
	err  *NotConnectedError // set exactly when conn is not

	built atomic.Pointer[clients] // what conn built on first use, here too so that getters find it in one step less
}

// clients returns the clients of the connection, built on first use.
func (s *snapshot) clients() (*clients, error) {
	if h := s.built.Load(); h != nil {
		return h, nil
	}
	if s.conn == nil {
		return nil, s.err
	}
	h, err := s.conn.clients()
	if err == nil {
		s.built.Store(h)
	}
	return h, err
}

// state is a snapshot for people.
func (a *identityAccessor) state() ConnectionState {
	a.mu.Lock()
	snap, published := a.machine.Snapshot(a.observedLocked()), a.published.Load()
	state := ConnectionState{Extension: a.key, Source: snap.Source, Phase: snap.Phase, Reason: snap.Reason,
		Since:      snap.Since,
		Generation: snap.Epoch, Health: snap.Health, Message: connstate.ErrorText(
			snap.Err), ObservedGeneration: snap.Generation}
	if a.object != nil {
		state.UID = a.object.GetUID()
	}
	if a.membership != nil {
		state.Target = a.membership.Host()
	}
	if current := a.credentials.get(snap.Credential); current != nil {
		state.TokenExpires = current.cred.Expires()
	}
	state.Watches = a.watches.States()
	a.mu.Unlock()
	if conn := published.conn; conn != nil {
		state.Identity = conn.identity
		state.Identity.Groups = slices.Clone(conn.identity.Groups)
		state.Scopes = conn.scopes()
	}
	return state
}

// unhealthy reports whether the extension is not connected or its last probe was no success, and
// since when it had none.
func (a *identityAccessor) unhealthy() (object client.Object, since time.Time, unhealthy bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	snap := a.machine.Snapshot(a.observedLocked())
	if a.object == nil || snap.Healthy {
		return nil, time.Time{}, false
	}
	return a.object, snap.LastSuccess, true
}
