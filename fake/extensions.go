package fake

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/degraded"
	"github.com/latchkey-dev/latchkey/internal/extensionsource"
	"github.com/latchkey-dev/latchkey/internal/statechanges"
)

// extensions are the extensions of a Cache and their connections.
type extensions struct {
	hub    extensionsource.Hub
	states statechanges.Hub

	mu    sync.Mutex
	byKey map[client.ObjectKey]*extension // guarded by mu
	conns []*connection                   // guarded by mu; all connections so far, for Close
}

// extension is one extension. The cache's mu guards all fields.
type extension struct {
	object   client.Object
	state    clustercache.ConnectionState // Watches and Identity are not set
	identity clustercache.Identity        // for the next connect
	conn     *connection                  // nil while not connected
	since    time.Time                    // start of the current phase
	access   *access                      // what Forbid took; survives reconnects
	// objectSet is set if SetExtension set object, and stale if calls of For fail
	objectSet, stale bool
	presets          []string          // names given to NewFakeCache; replaced, never changed in place
	registry         *watches.Registry // nil before the first connect, because the scheme comes from its client
}

func (f *extensions) connect(key client.ObjectKey, c client.Client, presets []string) {
	if c == nil {
		f.disconnect(key, clustercache.ReasonNotStarted,
			"the fake was called with a nil client; to start without a client, use NewFakeEmptyCache")
		return
	}
	f.mu.Lock()
	e := f.getOrAddLocked(key)
	e.presets = append(slices.Clone(e.presets), presets...)
	if e.registry == nil {
		e.registry = &watches.Registry{
			Extension: key,
			Scheme:    c.Scheme(),
			Logger:    logr.Discard(),
			Changed:   func() { f.states.Changed(key) },
		}
	}
	release := func() {}
	if e.conn != nil {
		release = f.endLocked(e, clustercache.ReasonIdentityMismatch, "the fake replaced the connection")
	}
	e.state.Epoch++
	e.stale = false
	e.conn = newConnection(c, e.state.Epoch, e.identity, e.access, func() { f.states.Changed(key) })
	f.conns = append(f.conns, e.conn)
	now := time.Now()
	e.state.Phase, e.state.Reason, e.state.Message, e.state.Since, e.since = clustercache.PhaseConnected, "", "", now, now
	e.state.Target, e.state.DisconnectedSince = Target, time.Time{}
	e.state.Health = succeededAt(now)
	e.setHealthyLocked()
	e.registry.Connected(e.conn)
	object := e.object
	f.mu.Unlock()
	release()
	f.hub.Changed(object)
	f.states.Changed(key)
}

func (f *extensions) disconnect(key client.ObjectKey, reason clustercache.Reason, message string) {
	f.mu.Lock()
	e := f.getOrAddLocked(key)
	release := f.endLocked(e, reason, message)
	object, registry := e.object, e.registry
	gone := reason == clustercache.ReasonDeleted || reason == clustercache.ReasonFiltered
	if gone {
		delete(f.byKey, key)
	}
	f.mu.Unlock()
	release()
	if gone && registry != nil {
		registry.End()
	}
	f.hub.Changed(object)
	f.states.Changed(key)
}

// endLocked ends the connection of an extension, if there is one. Call release after mu is
// unlocked.
func (f *extensions) endLocked(e *extension, reason clustercache.Reason, message string) (release func()) {
	if e.conn != nil || e.state.Reason == clustercache.ReasonNotStarted {
		e.since = time.Now()
	}
	e.state.Phase, e.state.Reason, e.state.Since = clustercache.PhaseDisconnected, reason, e.since
	e.state.Message = message
	if e.state.DisconnectedSince.IsZero() {
		e.state.DisconnectedSince = e.since
	}
	conn, registry := e.conn, e.registry
	e.conn = nil
	e.setHealthyLocked()
	if conn == nil {
		return func() {}
	}
	conn.close(e.notConnected())
	return func() { registry.Disconnected(conn) }
}

// getOrAddLocked returns the extension, after it has created the extension if necessary.
func (f *extensions) getOrAddLocked(key client.ObjectKey) *extension {
	if e, found := f.byKey[key]; found {
		return e
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	object.SetNamespace(key.Namespace)
	object.SetName(key.Name)
	object.SetUID(types.UID("fake-" + key.Name))
	now := time.Now()
	e := &extension{
		object: object,
		since:  now,
		access: &access{},
		state: clustercache.ConnectionState{
			Extension:         key,
			UID:               object.GetUID(),
			Phase:             clustercache.PhaseDisconnected,
			Reason:            clustercache.ReasonNotStarted,
			Since:             now,
			DisconnectedSince: now,
			HealthSince:       now,
		},
		identity: clustercache.Identity{
			Username: "system:serviceaccount:fake:" + key.Name,
			UID:      types.UID("fake-" + key.Name),
		},
	}
	f.byKey[key] = e
	return e
}

// connected returns a copy of a connected extension, or an error with the reason why the extension
// is not connected.
func (f *extensions) connected(key client.ObjectKey) (extension, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, found := f.byKey[key]
	switch {
	case !found:
		return extension{},
			&clustercache.NotConnectedError{
				Extension: key,
				Reason:    clustercache.ReasonNotStarted,
				Err:       errors.New("the fake does not know the extension"),
			}
	case e.conn == nil:
		return extension{}, e.notConnected()
	}
	return *e, nil
}

func (e *extension) notConnected() *clustercache.NotConnectedError {
	err := &clustercache.NotConnectedError{Extension: e.state.Extension, Reason: e.state.Reason, Since: e.since}
	if e.state.Message != "" {
		err.Err = errors.New(e.state.Message)
	}
	return err
}

// setHealthyLocked sets Healthy after a change of the connection or of the health.
func (e *extension) setHealthyLocked() {
	if healthy := e.conn != nil && e.state.Health.ConsecutiveFailures == 0; healthy != e.state.Healthy {
		e.state.Healthy, e.state.HealthSince = healthy, time.Now()
	}
}

// problems returns what keeps a connected extension from its work.
func (e *extension) problems(state clustercache.ConnectionState) []clustercache.Problem {
	facts := degraded.Facts{MutedHere: e.object.GetAnnotations()[clustercache.MuteAnnotation]}
	if !state.Healthy {
		facts.Probe = []degraded.Fault{{Why: connstate.ErrorText(state.Health.LastError), Since: state.HealthSince}}
	}
	accessor.AddScopes(&facts, state.Scopes)
	var all []clustercache.Problem
	for _, problem := range degraded.Problems(facts) {
		all = append(all, clustercache.Problem(problem))
	}
	return all
}

// snapshot returns a copy of the extension's state. The cache's mu must be locked.
func (e *extension) snapshot() clustercache.ConnectionState {
	state := e.state
	if e.conn != nil {
		state.Identity = e.conn.identity
		state.Identity.Groups = slices.Clone(state.Identity.Groups)
		state.Scopes = e.conn.scopes()
		state.Problems = e.problems(state)
	}
	for _, name := range e.presets {
		state.Watches = append(state.Watches, clustercache.WatchState{Name: name, Dependents: []types.UID{""}})
	}
	if e.registry != nil {
		for _, watch := range e.registry.States() {
			state.Watches = append(state.Watches, clustercache.WatchState(watch))
		}
	}
	slices.SortStableFunc(state.Watches, func(x, y clustercache.WatchState) int { return cmp.Compare(x.Name, y.Name) })
	return state
}

// extensionLister lists the extensions of a Cache for its sources.
type extensionLister struct{ *extensions }

func (l extensionLister) Objects() (objects []client.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.byKey {
		objects = append(objects, e.object)
	}
	return objects
}

func (l extensionLister) Unhealthy() (list []extensionsource.Unhealthy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.byKey {
		if e.conn != nil && e.state.Health.ConsecutiveFailures == 0 {
			continue
		}
		since := e.state.Health.LastProbeSuccessTime
		if since.IsZero() {
			since = e.since
		}
		list = append(list, extensionsource.Unhealthy{Object: e.object, Since: since})
	}
	return list
}
