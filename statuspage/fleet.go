package statuspage

import (
	"cmp"
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
	Replica   string    `json:"replica,omitempty"` // that has it, or had it last
	ClaimedBy []string  `json:"claimedBy,omitempty"`
	Connects  int64     `json:"connects"` // 0 while Unknown
	Healthy   bool      `json:"healthy"`
	Watches   int       `json:"watches"`
	Scopes    int       `json:"scopes"`
	// Troubled is how many of the scopes deliver nothing, or nothing new.
	Troubled int `json:"troubled"`
	// SharedBy is how many extensions use the cache, 0 for a cache of its own. Only the rows that a
	// viewer gets have it.
	SharedBy int `json:"sharedBy,omitempty"`

	key      client.ObjectKey
	problems []clustercache.Problem // also muted ones
	cache    string                 // that the extension shares; empty for none
	scopes   []usedScope            // of that cache
	search   string                 // what the filter searches, in lower case
}

func rowOf(state shown) *row {
	summary := state.summary
	r := &row{
		Extension: keyString(state.Extension),
		State:     summary.State,
		Reason:    summary.Reason,
		Message:   cut(summary.Message),
		Since:     summary.Since,
		Username:  state.Identity.Username,
		Target:    state.Target,
		Replica:   state.replica(),
		Connects:  state.Epoch,
		Healthy:   state.Healthy,
		Watches:   len(state.Watches),
		Scopes:    len(state.Scopes),
		key:       state.Extension,
		problems:  state.Problems,
		cache:     state.SharedCache,
	}
	if state.silent() {
		r.Healthy = false
	}
	texts := []string{r.Extension, r.State, r.Reason, r.Message, r.Username, r.Target, state.Source}
	if state.fleet != nil {
		r.ClaimedBy = state.fleet.ClaimedBy
		texts = append(append(texts, r.Replica), r.ClaimedBy...)
	}
	for _, scope := range state.Scopes {
		troubled := isTrouble(scope)
		if troubled {
			r.Troubled++
		}
		if r.cache != "" {
			r.scopes = append(r.scopes, usedScope{hashOf(scope), troubled})
		}
	}
	r.search = strings.ToLower(strings.Join(texts, "\n"))
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
	shared    sharedCaches              // guarded by mu; what the rows use

	seen map[client.ObjectKey]*seen // of rows; only update reads and writes it, in one goroutine
}

func newFleet() *fleet {
	return &fleet{
		changed: make(chan struct{}),
		rows:    map[client.ObjectKey]*row{},
		shared:  newSharedCaches(),
		seen:    map[client.ObjectKey]*seen{},
	}
}

// update takes over the states of extensions. get returns false for an extension that is gone. Only
// one goroutine may call update.
func (f *fleet) update(keys []client.ObjectKey, get func(client.ObjectKey) (shown, bool), now time.Time) {
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
func (f *fleet) updateChunk(keys []client.ObjectKey, get func(client.ObjectKey) (shown, bool), now time.Time) {
	type change struct {
		row     *row // nil if the extension is gone
		entries []entry
	}
	changes := make([]change, len(keys))
	for i, key := range keys {
		if state, known := get(key); known {
			next, entries := entriesOf(f.seen[key], state, now)
			changes[i] = change{rowOf(state), entries}
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
		f.shared.add(f.rows[key], -1)
		f.shared.add(changes[i].row, 1)
		if f.rows[key] = changes[i].row; changes[i].row == nil {
			delete(f.rows, key)
			f.timelines.removed(key, now)
		}
	}
	f.timelines.expire(now)
}

// keys returns the extensions, sorted.
func (f *fleet) keys() []client.ObjectKey {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(maps.Keys(f.rows), func(x, y client.ObjectKey) int {
		return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
	})
}

// fleetState is the state of a fleet at a time.
type fleetState struct {
	ready            bool
	rows             []*row         // in any order
	sharers          map[string]int // extensions by the cache that they share
	scopes, troubled int            // of the shared caches, each once
	changed          <-chan struct{}
}

// current returns the rows of all extensions, and a channel that is closed when they change.
func (f *fleet) current() fleetState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fleetState{
		ready:    f.ready,
		rows:     slices.Collect(maps.Values(f.rows)),
		sharers:  maps.Clone(f.shared.extensions),
		scopes:   len(f.shared.scopes),
		troubled: len(f.shared.troubled),
		changed:  f.changed,
	}
}

// timeline returns an extension's timeline, newest first, and its row, nil if it is not known.
func (f *fleet) timeline(key client.ObjectKey) ([]entry, *row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rows[key]
	if r != nil {
		r = r.withSharers(f.shared.extensions)
	}
	return f.timelines.of(key), r
}

// withSharers returns the row as viewers get it.
func (r *row) withSharers(extensions map[string]int) *row {
	if r.cache == "" {
		return r
	}
	shown := *r
	shown.SharedBy = extensions[r.cache]
	return &shown
}
