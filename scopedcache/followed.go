package scopedcache

import (
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/latchkey-dev/latchkey/internal/versions"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/members"
)

const (
	// A set looks whether an informer has caught up with others after followAtFirst, and then less
	// and less often, down to each followAtLast.
	followAtFirst, followAtLast = 10 * time.Millisecond, time.Second
	// takeOverFor is how long handlers of a set receive nothing while one informer takes over.
	takeOverFor = 10 * time.Second
)

// followed is how the informer of all namespaces follows those of each. An informer may be Synced
// and far behind, or hang: then it must not take over.
type followed struct {
	synced bool      // it was, at the last look
	mark   string    // what handlers had received then
	since  time.Time // when it began to take over; zero if it does not
}

// look adds to the facts how far informers are. The caller holds set.mu.
func (f *followed) look(s *namespaceSet, facts *members.Facts) {
	if !s.isAllowed() {
		return
	}
	all := facts.Informers[members.All]
	candidate := all.Synced && !s.machine.Feeds(members.All) // to take over
	received := versions.ByNamespace{}
	if candidate || !s.machine.AllFeed() {
		received = s.receivedLocked()
	}
	for namespace, i := range facts.Informers {
		i.Behind = i.Synced && namespace != members.All && !s.machine.Feeds(namespace) &&
			!s.held[namespace].hasReached(received[namespace])
		facts.Informers[namespace] = i
	}
	if !candidate {
		*f = followed{}
		return
	}
	latest := received.Latest()
	if !f.synced {
		f.synced, f.mark = true, latest
	}
	facts.Follows = s.held[members.All].hasReached(f.mark)
	facts.CaughtUp = s.held[members.All].hasReached(latest)
	switch {
	case !s.machine.TakesOver():
		f.since = time.Time{}
	case f.since.IsZero():
		f.since = time.Now()
	case time.Since(f.since) > takeOverFor:
		facts.Overdue, facts.Follows = true, false
		*f = followed{synced: true, mark: latest}
	}
}

// receivedLocked returns the latest versions that handlers have received. The caller holds mu.
func (s *namespaceSet) receivedLocked() versions.ByNamespace {
	received := versions.ByNamespace{}
	for _, h := range s.handlers {
		for namespace, version := range h.received() {
			received.Note(namespace, version)
		}
	}
	return received
}

// hasReached reports whether the running informer has a resource version, or versions cannot be
// compared.
func (s *entry) hasReached(wanted string) bool {
	if wanted == "" {
		return true
	}
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	if running == nil {
		return false
	}
	has := running.shared.LastSyncResourceVersion()
	if has == "" {
		return false // client-go sets it only after the list is in the store
	}
	order, err := resourceversion.CompareResourceVersion(has, wanted)
	return err != nil || order >= 0
}

// isNotServed reports whether the kind is not served.
func (s *entry) isNotServed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == StateNotServed
}

// isDenied reports whether there never was permission.
func (s *entry) isDenied() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == StateForbidden && !s.served
}

func (s *namespaceSet) isAllowed() bool { return s.scope.Namespaces.kind == members.Allowed }
