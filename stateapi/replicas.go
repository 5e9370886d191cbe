package stateapi

import (
	"context"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/internal/merge"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// firstView is how long Replicas waits for the other replicas at the start.
const firstView = 15 * time.Second

// Replicas is the view of all replicas of a fleet, as each of them has it in memory, whichever
// serves the API. It is for the status page: see statuspage.Options. Its methods may be called from
// any goroutine.
type Replicas struct{ fleet *fleet }

// Replicas returns the view of all replicas, and false without Options.Fleet.
func (s *StateAPI) Replicas() (*Replicas, bool) {
	if s.fleet == nil {
		return nil, false
	}
	return &Replicas{s.fleet}, true
}

// Follow calls report with all extensions, when the replicas that are members have said what they
// have or 15 s have passed, and then with those whose Connection or Scopes have changed, until ctx
// is done. The empty key stands for the replicas themselves: see Members. Calls are one at a time.
// Nothing is reported before the StateAPI has started.
func (r *Replicas) Follow(ctx context.Context, report func(extensions []client.ObjectKey)) {
	m := r.fleet.merged
	m.changes.Subscribe(ctx, m.begun, m.extensions, report)
}

// Show returns what is shown of an extension: its Connection, and its Scopes in any order. The
// Scopes must not be changed. Times of probes and numbers of objects are not in it.
func (r *Replicas) Show(extension client.ObjectKey) (*v1alpha1.Connection, []*v1alpha1.Scope, bool) {
	m := r.fleet.merged
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.states.Get(apiserver.Context{Namespace: extension.Namespace}, extension.Name, nil)
	if err != nil {
		return nil, nil, false
	}
	choice := m.shown[extension].choice
	if choice.Kind != merge.Held && choice.Kind != merge.Silent {
		return c, nil, true
	}
	scopes := slices.Collect(maps.Values(m.said[choice.Replica][extension]))
	if choice.Kind == merge.Silent {
		for n, scope := range scopes {
			scopes[n] = shownScope(scope, choice)
		}
	}
	return c, scopes, true
}

// Ask is Show with what changes all the time, from the replica that has the extension, which must
// answer within seconds: probes, permissions, and how many objects there are. The Scopes have
// numbers only if that is this replica.
func (r *Replicas) Ask(ctx context.Context, extension client.ObjectKey) (*v1alpha1.Connection, []*v1alpha1.Scope,
	bool) {
	m := r.fleet.merged
	c, err := m.states.Get(apiserver.Context{Context: ctx, Namespace: extension.Namespace}, extension.Name, nil)
	if err != nil {
		return nil, nil, false
	}
	m.ask(ctx, c)
	_, scopes, _ := r.Show(extension)
	if c.Status.Replica == m.self {
		scopes = r.fleet.api.counted(ctx, extension, scopes)
	}
	return c, scopes, true
}

// counted returns copies of this replica's own scopes with the numbers of their objects.
func (s *StateAPI) counted(ctx context.Context, extension client.ObjectKey,
	scopes []*v1alpha1.Scope) (copies []*v1alpha1.Scope) {
	state, _ := s.connections.GetConnectionState(ctx, extension)
	objects := make(map[string]int64, len(state.Scopes))
	for _, scope := range state.Scopes {
		objects[scopeName(extension.Name, scope)] = int64(scope.Objects)
	}
	for _, scope := range scopes {
		shown := copyOfScope(scope)
		if count, known := objects[scope.Name]; known {
			shown.Status.Objects = &count
		}
		copies = append(copies, shown)
	}
	return copies
}

// Members returns the replicas, sorted, and which of them are not heard, with the time when they
// were heard last, which is zero if they never were. Among these are those that are heard so late
// that others may have shown more, with the time when they were asked. There are none until this
// replica knows who is there. This replica is always heard.
func (r *Replicas) Members() (replicas []string, silent map[string]time.Time) {
	m := r.fleet.merged
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.present), maps.Clone(m.silent)
}

// extensions returns the extensions that are shown.
func (m *merged) extensions() []client.ObjectKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.shown))
}

// begin lets Follow begin when the members were listed.
func (m *merged) begin(ctx context.Context) {
	if m.awaitComplete(ctx, firstView) {
		close(m.begun)
	}
}

// noticeLocked notices who is there, and who is silent.
func (m *merged) noticeLocked(now time.Time) {
	if !m.met {
		return
	}
	present := append(m.view.Replicas(), m.self)
	present = append(present, m.members...)
	slices.Sort(present)
	present = slices.Compact(present)
	var silent map[string]time.Time
	for _, replica := range present {
		since, doubted := m.view.DoubtedSince(replica)
		at, heard := m.view.HeardAt(replica)
		if heard && doubted {
			at = since
		} else if !m.isSilentLocked(replica, now) {
			continue
		}
		if silent == nil {
			silent = map[string]time.Time{}
		}
		silent[replica] = at
	}
	if !slices.Equal(present, m.present) || !maps.EqualFunc(silent, m.silent, time.Time.Equal) {
		m.present, m.silent = present, silent
		m.changes.Changed(client.ObjectKey{})
	}
}
