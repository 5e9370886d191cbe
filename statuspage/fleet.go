package statuspage

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// row is what the table shows of one extension. A row is immutable.
type row struct {
	Extension string    `json:"extension"`
	State     string    `json:"state"`
	Reason    string    `json:"reason,omitempty"`
	Message   string    `json:"message,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Username  string    `json:"username,omitempty"`
	Target    string    `json:"target,omitempty"`
	Connects  int64     `json:"connects"`
	Healthy   bool      `json:"healthy"`
	Watches   int       `json:"watches"`
	Scopes    int       `json:"scopes"`
	// Troubled is how many of the scopes deliver nothing, or nothing new.
	Troubled int `json:"troubled"`

	key    client.ObjectKey
	search string // what the filter searches, in lower case
}

// States of an extension in one word. A retry is no news.
const (
	stateConnected    = "Connected"
	stateConnecting   = "Connecting"
	stateDisconnected = "Disconnected"
)

func rowOf(state clustercache.ConnectionState) *row {
	r := &row{
		Extension: keyString(state.Extension),
		State:     stateDisconnected,
		Reason:    string(state.Reason),
		Message:   cut(state.Message),
		Since:     state.Since,
		Username:  state.Identity.Username,
		Target:    state.Target,
		Connects:  state.Epoch,
		Healthy:   state.Healthy,
		Watches:   len(state.Watches),
		Scopes:    len(state.Scopes),
		key:       state.Extension,
	}
	switch {
	case state.Phase == clustercache.PhaseConnected:
		r.State = stateConnected
	case state.Starting():
		r.State = stateConnecting
	}
	if !state.DisconnectedSince.IsZero() {
		r.Since = state.DisconnectedSince
	}
	for _, scope := range state.Scopes {
		if isTrouble(scope) {
			r.Troubled++
		}
	}
	r.search = strings.ToLower(strings.Join([]string{r.Extension, r.State, r.Reason, r.Message, r.Username, r.Target,
		state.Source}, "\n"))
	return r
}

// keyString returns namespace/name, or the name of a cluster-scoped extension.
func keyString(key client.ObjectKey) string {
	if key.Namespace == "" {
		return key.Name
	}
	return key.String()
}

// keyOf is the reverse of keyString.
func keyOf(text string) client.ObjectKey {
	if namespace, name, found := strings.Cut(text, "/"); found {
		return client.ObjectKey{Namespace: namespace, Name: name}
	}
	return client.ObjectKey{Name: text}
}

// fleet has the rows and timelines of all extensions. Its methods may be called from any goroutine.
type fleet struct {
	mu        sync.Mutex
	changed   chan struct{}             // guarded by mu; closed at the next change
	ready     bool                      // guarded by mu; the states were reported once
	rows      map[client.ObjectKey]*row // guarded by mu
	timelines timelines                 // guarded by mu

	seen map[client.ObjectKey]*seen // of rows; only update reads and writes it, in one goroutine
}

func newFleet() *fleet {
	return &fleet{changed: make(chan struct{}), rows: map[client.ObjectKey]*row{}, seen: map[client.ObjectKey]*seen{}}
}

// update takes over the states of extensions. get returns false for an extension that is gone. Only
// one goroutine may call update.
func (f *fleet) update(keys []client.ObjectKey, get func(client.ObjectKey) (clustercache.ConnectionState, bool),
	now time.Time) {
	for chunk := range slices.Chunk(keys, 256) { // so that no reader waits for a large fleet
		f.updateChunk(chunk, get, now)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ready = true
	close(f.changed)
	f.changed = make(chan struct{})
}

// updateChunk computes the changes before it locks, because get is the ClusterCache's code and
// takes locks.
func (f *fleet) updateChunk(keys []client.ObjectKey, get func(client.ObjectKey) (clustercache.ConnectionState, bool),
	now time.Time) {
	type change struct {
		row     *row // nil if the extension is gone
		entries []entry
	}
	changes := make([]change, len(keys))
	for i, key := range keys {
		if state, known := get(key); known {
			next := seenOf(f.seen[key], state)
			changes[i] = change{rowOf(state), entriesBetween(f.seen[key], next, state, now)}
			f.seen[key] = &next
		} else {
			if f.seen[key] != nil {
				changes[i].entries = []entry{{Time: now, What: entryRemoved, Message: "deleted, or not selected any more"}}
			}
			delete(f.seen, key)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, key := range keys {
		f.timelines.add(key, changes[i].entries...)
		if f.rows[key] = changes[i].row; changes[i].row == nil {
			delete(f.rows, key)
			f.timelines.removed(key, now)
		}
	}
	f.timelines.expire(now)
}

// fleetState is the state of a fleet at a time.
type fleetState struct {
	ready   bool
	rows    []*row // in any order
	changed <-chan struct{}
}

// current returns the rows of all extensions, and a channel that is closed when they change.
func (f *fleet) current() fleetState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fleetState{ready: f.ready, rows: slices.Collect(maps.Values(f.rows)), changed: f.changed}
}

// timeline returns an extension's timeline, newest first, and its row, nil if it is not known.
func (f *fleet) timeline(key client.ObjectKey) ([]entry, *row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.timelines.of(key), f.rows[key]
}
