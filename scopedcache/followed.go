package scopedcache

import (
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/members"
)

const (
	// followInterval is how often a set looks whether an informer has caught up with others.
	followInterval = 20 * time.Millisecond
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
	latest := ""
	for _, h := range s.handlers {
		latest = replay.Later(latest, h.latest)
		for _, r := range h.feeds {
			latest = replay.Later(latest, r.feed.Latest())
		}
	}
	for namespace, i := range facts.Informers {
		i.Behind = i.Synced && namespace != members.All && s.isAllowed() && !s.machine.Feeds(namespace) &&
			!s.held[namespace].hasReached(latest)
		facts.Informers[namespace] = i
	}
	all := facts.Informers[members.All]
	if !all.Synced || s.machine.Feeds(members.All) {
		*f = followed{}
		return
	}
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
	order, err := resourceversion.CompareResourceVersion(running.shared.LastSyncResourceVersion(), wanted)
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
