package stateapi

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// stores returns the stores of what is shown, for a server.
func (m *merged) stores(current *current) (*fleetStore, *currentStore[*v1alpha1.Scope, *v1alpha1.ScopeList]) {
	return &fleetStore{
		currentStore: currentStore[*v1alpha1.Connection, *v1alpha1.ConnectionList]{m.states, current},
		merged:       m,
	}, &currentStore[*v1alpha1.Scope, *v1alpha1.ScopeList]{m.scopes, current}
}

// fleetStore asks the replica that has an extension when one is read by itself.
type fleetStore struct {
	currentStore[*v1alpha1.Connection, *v1alpha1.ConnectionList]
	merged *merged
}

// Get implements apiserver.Getter.
func (s *fleetStore) Get(ctx apiserver.Context, name string, options *metav1.GetOptions) (*v1alpha1.Connection, error) {
	c, err := s.currentStore.Get(ctx, name, options)
	if err != nil {
		return c, err
	}
	s.merged.ask(ctx, c)
	return c, s.current.check() // again: that may have taken long
}

// ask fills in what changes all the time, as the replica says it that has the extension. If it does
// not answer, what it said before stays.
func (m *merged) ask(ctx context.Context, c *v1alpha1.Connection) {
	switch {
	case c.Status.Replica == "" || c.Status.State == v1alpha1.StateUnknown:
		return
	case c.Status.Replica == m.self:
		m.ownGet(c)
		return
	}
	fresh := &v1alpha1.Connection{}
	err := m.get(ctx, c.Status.Replica, connectionsResource, c.Namespace, c.Name, fresh)
	if _, ok := m.received(fresh, c.Status.Replica); err != nil || !ok || fresh.UID != c.UID {
		m.refresh(c)
		return
	}
	c.Status.Probe, c.Status.Permissions, c.Status.Refused = fresh.Status.Probe, fresh.Status.Permissions,
		fresh.Status.Refused
	c.Status.Objects = fresh.Status.Objects
}
