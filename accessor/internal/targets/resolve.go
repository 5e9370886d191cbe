package targets

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// anewFor is how long the members of a target share what was found by asking for a group.
	anewFor = time.Second
	// renewTimeout is how long a request whose kind is known waits for what discovery says now.
	renewTimeout = time.Second
	// longestTrust is the longest time between two looks at a kind that requests contradict.
	longestTrust = time.Minute
)

// recent has the groups that were asked for by themselves in the last moments. The zero value is
// ready to use.
type recent struct {
	mu     sync.Mutex
	groups map[string]*kinds // guarded by mu
	tried  time.Time         // guarded by mu; when a request last waited for a discovery of kinds that are known
}

// get returns what was found of a group, nil if that is too long ago.
func (r *recent) get(group string) *kinds {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found := r.groups[group]; found != nil && time.Since(found.at) < anewFor {
		return found
	}
	return nil
}

func (r *recent) set(group string, found *kinds) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.groups == nil {
		r.groups = map[string]*kinds{}
	}
	for name, earlier := range r.groups {
		if time.Since(earlier.at) >= anewFor {
			delete(r.groups, name)
		}
	}
	r.groups[group] = found
}

// mayTry reports whether a request may wait for a discovery: once in rediscoverAfter, whether it
// fails or not.
func (r *recent) mayTry() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.tried.IsZero() || now.Sub(r.tried) >= rediscoverAfter {
		r.tried = now
		return true
	}
	return false
}

// RESTMappingAnew returns the resource of a kind as the API server names it now, by a discovery of
// its group. A discovery that fails is an error, whatever is known. If the answer differs from what
// is known, the next lookups discover again.
func (m *Mapper) RESTMappingAnew(ctx context.Context, gk schema.GroupKind, version string) (*meta.RESTMapping, error) {
	found := m.kinds.anew.get(gk.Group)
	if found == nil {
		var err error
		if found, err = m.askGroup(ctx, gk.Group); err != nil {
			return nil, err
		}
		m.kinds.anew.set(gk.Group, found)
	}
	mapping, err := found.mapper.RESTMapping(gk, version)
	if current := m.current(gk.Group); current != nil && current.at.Before(found.at) {
		if known, knownErr := current.mapper.RESTMapping(gk, version); !sameResource(mapping, err, known, knownErr) {
			m.kinds.forget()
		}
	}
	return mapping, err
}

// sameResource compares two answers.
func sameResource(a *meta.RESTMapping, aErr error, b *meta.RESTMapping, bErr error) bool {
	if aErr != nil || bErr != nil {
		return aErr != nil && bErr != nil
	}
	return a.Resource == b.Resource && a.Scope.Name() == b.Scope.Name()
}

// current returns the kinds that lookups in a group use, nil for none.
func (m *Mapper) current(group string) *kinds {
	latest, alone := m.kinds.latest.Load(), m.kinds.groups.known(group)
	if latest == nil || alone != nil && alone.at.After(latest.at) {
		return alone
	}
	return latest
}

// Resolved is the resource of a kind, as a discovery found it.
type Resolved struct {
	Mapping *meta.RESTMapping
	from    *kinds        // the current kinds before Mapping was looked up; nil for none
	trusted time.Time     // until when requests that contradict Mapping are no reason to look it up
	trust   time.Duration // how long the latest such time was
}

// Same reports whether both name the same resource and scope.
func (r *Resolved) Same(other *Resolved) bool {
	return sameResource(r.Mapping, nil, other.Mapping, nil)
}

// Resolve returns the resource of a kind. last is what the caller knows of it, nil for nothing.
// Resolve returns it without a lookup while no other discovery has followed, and no path turned out
// not to exist. Else one caller in five seconds waits for a discovery, for a second at most, and
// the others get what is known.
func (m *Mapper) Resolve(ctx context.Context, gvk schema.GroupVersionKind, last *Resolved) (*Resolved, error) {
	current := m.current(gvk.Group)
	if last == nil {
		mapping, err := m.RESTMappingWithContext(ctx, gvk.GroupKind(), gvk.Version)
		if err != nil {
			return nil, err
		}
		return &Resolved{Mapping: mapping, from: current}, nil
	}
	if current == nil {
		return last, nil
	}
	if current.stale.Load() && m.kinds.anew.mayTry() {
		ctx, cancel := context.WithTimeout(ctx, renewTimeout)
		defer cancel()
		_, _ = m.RESTMappingWithContext(ctx, gvk.GroupKind(), gvk.Version) // what it finds is current then
		current = m.current(gvk.Group)
	}
	if last.from == current {
		return last, nil
	}
	mapping, err := current.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return last, nil // the kind is gone, and the request says so
	}
	return &Resolved{Mapping: mapping, from: current, trusted: last.trusted, trust: last.trust}, nil
}

// Doubt is Resolve for a request that makes no sense for last: it looks the kind up, unless that
// was done a short time ago. The time grows while nothing has changed, because some callers always
// send such requests.
func (m *Mapper) Doubt(ctx context.Context, gvk schema.GroupVersionKind, last *Resolved) *Resolved {
	now := time.Now()
	if now.Before(last.trusted) {
		return last
	}
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	current := m.current(gvk.Group)
	mapping, err := m.RESTMappingAnew(ctx, gvk.GroupKind(), gvk.Version)
	next := *last
	next.trust = min(max(2*last.trust, rediscoverAfter), longestTrust)
	next.trusted = now.Add(next.trust)
	if err == nil && !sameResource(mapping, nil, last.Mapping, nil) {
		next = Resolved{Mapping: mapping, from: current}
	}
	return &next
}
