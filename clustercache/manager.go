package clustercache

import (
	"sync"

	"github.com/pkg/errors"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/accessor"
)

// managers has what the ClusterCaches of each manager share.
var managers = managerSet{byElected: map[<-chan struct{}]*managed{}}

// managerSet knows a manager by its Elected channel: a type that wraps a manager has the same
// channel, and the channel does not keep a manager in memory that was never started.
type managerSet struct {
	mu        sync.Mutex
	byElected map[<-chan struct{}]*managed // guarded by mu; only managers with ClusterCaches
}

// managed is a manager with ClusterCaches.
type managed struct {
	names  map[string]struct{} // of the ClusterCaches
	shared *accessor.Shared
}

// join adds a ClusterCache to a manager, until leave is called. An error means that the manager has
// one of that name.
func (s *managerSet) join(mgr manager.Manager, name string) (shared *accessor.Shared, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	elected := mgr.Elected()
	if elected == nil { // a type for tests; its managers have no channel that distinguishes them
		return &accessor.Shared{}, func() {}, nil
	}
	m, known := s.byElected[elected]
	if !known {
		m = &managed{names: map[string]struct{}{}, shared: &accessor.Shared{}}
		s.byElected[elected] = m
	}
	if _, taken := m.names[name]; taken {
		return nil, nil, errors.Errorf("this manager has a ClusterCache of the name %q already: give this one another "+
			"Options.Name, or share the first", name)
	}
	m.names[name] = struct{}{}
	return m.shared, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(m.names, name)
		if len(m.names) == 0 {
			delete(s.byElected, elected)
		}
	}, nil
}
