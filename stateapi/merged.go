package stateapi

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/statechanges"
	"github.com/latchkey-dev/latchkey/stateapi/internal/merge"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

const (
	connectionsResource = "connections"
	scopesResource      = "scopes"
)

// merged has what all replicas of the fleet say, and the stores of what is shown of it. Package
// merge decides that. Its methods may be called from any goroutine.
type merged struct {
	self string
	// The extensions are namespaced, and terms say nothing: Options and FleetOptions.
	namespaced, ignoreTerms bool

	own    func(*v1alpha1.Connection) // fills in what changes all the time, of this replica's own
	ownGet func(*v1alpha1.Connection)
	get    func(ctx context.Context, replica, resource, namespace, name string, into runtime.Object) error
	// catchUp waits until what was heard of a replica includes what it had when catchUp was called.
	catchUp func(ctx context.Context, replica string) error
	// forget removes what this replica says to the others of an extension.
	forget func(extension client.ObjectKey)
	// checkMembers returns an error unless all members are known that had a Lease when it was called.
	checkMembers func(ctx context.Context) error
	states       *connectionStore
	scopes       *scopeStore

	mu   sync.Mutex
	view *merge.View[*v1alpha1.Connection] // guarded by mu
	// said has scopes by replica, extension and name. Guarded by mu.
	said    map[string]map[client.ObjectKey]map[string]*scopeRow
	shown   map[client.ObjectKey]shownExtension                 // guarded by mu
	tally   *tally                                              // guarded by mu; of shown
	known   map[client.ObjectKey]clustercache.NotOwnedExtension // guarded by mu
	leases  map[client.ObjectKey]*fence.Term                    // guarded by mu; of what this replica has
	met     bool                                                // guarded by mu; members is known
	members []string                                            // guarded by mu
	listed  map[string]map[string]bool                          // guarded by mu; resources by replica
	changed chan struct{}                                       // guarded by mu; closed when members or listed change
	metAt   map[string]time.Time                                // guarded by mu; since when members are known
	present []string                                            // guarded by mu; all replicas, if met
	silent  map[string]time.Time                                // guarded by mu; those of present that are not heard

	changes statechanges.Hub // for Replicas.Follow
	begun   chan struct{}    // closed when that may begin
}

type scopeRow = v1alpha1.Scope

// shownExtension is what is shown of an extension.
type shownExtension struct {
	choice merge.Choice
	state  string          // as in the Connection
	scopes map[string]bool // names
}

func newMerged(s *StateAPI, self string) *merged {
	m := &merged{
		self:        self,
		namespaced:  s.options.Namespaced,
		ignoreTerms: s.options.Fleet.IgnoreTerms,
		own:         s.refresh,
		ownGet:      s.refreshAndCount,
		view:        merge.New[*v1alpha1.Connection](merge.Times{Silence: silence, Forget: forgetTerms}),
		said:        map[string]map[client.ObjectKey]map[string]*scopeRow{},
		shown:       map[client.ObjectKey]shownExtension{},
		tally:       newTally(),
		known:       map[client.ObjectKey]clustercache.NotOwnedExtension{},
		leases:      map[client.ObjectKey]*fence.Term{},
		forget:      func(extension client.ObjectKey) { s.store(extension, nil, nil) },
		listed:      map[string]map[string]bool{},
		changed:     make(chan struct{}),
		metAt:       map[string]time.Time{},
		begun:       make(chan struct{}),
	}
	m.states, m.scopes = s.newStores(m.refresh, nil, s.countObjects, 0)
	return m
}

// update says what this replica has of an extension. row is nil if it does not have it. It is said
// to the other replicas before it is shown here: they must be able to ask for what was shown.
func (f *fleet) update(key client.ObjectKey, row *v1alpha1.Connection, scopes []*v1alpha1.Scope,
	state *clustercache.ConnectionState, other clustercache.NotOwnedExtension) {
	if row != nil {
		if row.Status.Replica = f.options.Identity; f.options.IgnoreTerms {
			row.Status.Term = 0
		}
	}
	known := clustercache.NotOwnedExtension{UID: state.UID, Created: state.Created}
	if known.UID == "" {
		known = other
	}
	m := f.merged
	m.mu.Lock()
	defer m.mu.Unlock()
	if state.Lease.Err() != nil { // the state does not say so yet
		row, scopes = nil, nil
	}
	now := time.Now()
	f.api.store(key, row, scopes)
	m.view.Hear(m.self, now)
	if m.known[key] = known; known.UID != "" {
		m.view.Know(key, known.UID)
	} else {
		delete(m.known, key)
		m.view.Gone(key)
	}
	if m.leases[key] = state.Lease; row == nil || state.Lease == nil {
		delete(m.leases, key)
	}
	if row == nil {
		delete(m.said[m.self], key)
		m.view.Unclaim(m.self, key)
	} else {
		own := map[string]*scopeRow{}
		for _, scope := range scopes {
			own[scope.Name] = copyOfScope(scope)
		}
		m.saidLocked(m.self)[key] = own
		m.view.Claim(m.self, key, rowOf(copyOf(row)))
	}
	m.showLocked(key, now, true)
}

func (m *merged) saidLocked(replica string) map[client.ObjectKey]map[string]*scopeRow {
	if m.said[replica] == nil {
		m.said[replica] = map[client.ObjectKey]map[string]*scopeRow{}
	}
	return m.said[replica]
}

func rowOf(c *v1alpha1.Connection) merge.Row[*v1alpha1.Connection] {
	return merge.Row[*v1alpha1.Connection]{UID: c.UID, Term: c.Status.Term, Row: c}
}

// copyOf returns a copy that shares what it points to, but the conditions, which put changes.
func copyOf(c *v1alpha1.Connection) *v1alpha1.Connection {
	copied := *c
	copied.ResourceVersion = ""
	copied.Status.Conditions = slices.Clone(c.Status.Conditions)
	return &copied
}

func copyOfScope(s *v1alpha1.Scope) *v1alpha1.Scope {
	copied := *s
	copied.ResourceVersion = ""
	return &copied
}

// Members implements peers.Listener.
func (m *merged) Members(identities []string) {
	slices.Sort(identities)
	m.showAll(m.meet(identities), false)
}

// meet takes over who is there, and returns the extensions of which something else is shown now.
func (m *merged) meet(identities []string) (changed []client.ObjectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.met && slices.Equal(identities, m.members) {
		return nil
	}
	m.met, m.members = true, identities
	changed = m.view.Members(identities)
	now, before := time.Now(), m.metAt
	m.metAt = make(map[string]time.Time, len(identities))
	for _, replica := range identities {
		if m.metAt[replica] = now; !before[replica].IsZero() {
			m.metAt[replica] = before[replica]
		}
	}
	m.noticeLocked(now)
	m.broadcastLocked()
	return changed
}

// Gone implements peers.Listener.
func (m *merged) Gone(replica string) {
	m.mu.Lock()
	delete(m.said, replica)
	delete(m.listed, replica)
	changed := m.view.Forget(replica)
	m.mu.Unlock()
	m.showAll(changed, false)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noticeLocked(time.Now())
}

func (m *merged) broadcastLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Replaced implements peers.Listener.
func (m *merged) Replaced(replica, resource string, objects []runtime.Object) {
	if resource == connectionsResource {
		rows := make(map[client.ObjectKey]merge.Row[*v1alpha1.Connection], len(objects))
		for _, object := range objects {
			if c, ok := m.received(object.(*v1alpha1.Connection), replica); ok {
				rows[client.ObjectKeyFromObject(c)] = rowOf(c)
			}
		}
		m.mu.Lock()
		changed := m.view.Replace(replica, rows)
		m.mu.Unlock()
		m.showAll(changed, false)
	} else {
		said := map[client.ObjectKey]map[string]*scopeRow{}
		for _, object := range objects {
			m.say(said, object.(*v1alpha1.Scope))
		}
		m.mu.Lock()
		changed := slices.Collect(maps.Keys(m.said[replica]))
		m.said[replica] = said
		m.mu.Unlock()
		m.showAll(slices.AppendSeq(changed, maps.Keys(said)), true)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listed[replica] == nil {
		m.listed[replica] = map[string]bool{}
	}
	if !m.listed[replica][resource] {
		m.listed[replica][resource] = true
		m.broadcastLocked()
	}
}

// say adds a scope to what a replica says.
func (m *merged) say(said map[client.ObjectKey]map[string]*scopeRow, scope *v1alpha1.Scope) (key client.ObjectKey) {
	key = client.ObjectKey{Namespace: scope.Namespace, Name: scope.Status.Extension}
	if !m.receivedScope(scope) {
		return key
	}
	if said[key] == nil {
		said[key] = map[string]*scopeRow{}
	}
	said[key][scope.Name] = scope
	return key
}

// Changed implements peers.Listener.
func (m *merged) Changed(replica, _ string, object runtime.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	switch object := object.(type) {
	case *v1alpha1.Connection:
		if c, ok := m.received(object, replica); ok {
			key := client.ObjectKeyFromObject(c)
			m.view.Claim(replica, key, rowOf(c))
			m.showLocked(key, now, false)
		}
	case *v1alpha1.Scope:
		m.showLocked(m.say(m.saidLocked(replica), object), now, true)
	}
}

// Removed implements peers.Listener.
func (m *merged) Removed(replica, _ string, object runtime.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	switch object := object.(type) {
	case *v1alpha1.Connection:
		key := client.ObjectKeyFromObject(object)
		m.view.Unclaim(replica, key)
		m.showLocked(key, now, false)
	case *v1alpha1.Scope:
		key := client.ObjectKey{Namespace: object.Namespace, Name: object.Status.Extension}
		said := m.saidLocked(replica)
		if delete(said[key], object.Name); len(said[key]) == 0 {
			delete(said, key)
		}
		m.showLocked(key, now, true)
	}
}

// Heard implements peers.Listener.
func (m *merged) Heard(replica string) {
	m.mu.Lock()
	_, heard := m.view.HeardAt(replica)
	changed := m.view.Hear(replica, time.Now())
	m.mu.Unlock()
	m.showAll(changed, false)
	if heard {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noticeLocked(time.Now())
}

// run notices who is silent, and which terms are over, until ctx is done.
func (m *merged) run(ctx context.Context) {
	tick := time.NewTicker(silence / 5)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.tick(time.Now())
		}
	}
}

func (m *merged) tick(now time.Time) {
	m.dropEnded()
	m.mu.Lock()
	m.view.Hear(m.self, now)
	changed := m.view.Tick(now)
	m.mu.Unlock()
	m.showAll(changed, false)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noticeLocked(now)
}

// awaitComplete waits until each member was listed, or for as long as patience. It returns false if
// ctx is done before.
func (m *merged) awaitComplete(ctx context.Context, patience time.Duration) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wait := time.NewTimer(patience)
	defer wait.Stop()
	for {
		complete, changed := m.complete()
		if complete {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		case <-wait.C:
			return true
		}
	}
}

func (m *merged) complete() (bool, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, replica := range m.members {
		if len(m.listed[replica]) < 2 {
			return false, m.changed
		}
	}
	return m.met, m.changed
}

func (m *merged) hasPeers() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.members) > 0
}

// refresh fills in what changes all the time. Of other replicas that is not known here.
func (m *merged) refresh(c *v1alpha1.Connection) {
	if c.Status.Replica == m.self {
		m.own(c)
		return
	}
	c.Status.Probe.LastTime, c.Status.Probe.LastSuccessTime, c.Status.Probe.Failures = nil, nil, 0
}
