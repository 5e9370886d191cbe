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
	longestTrust = 10 * time.Second
	// deniedFor is how long an identity that may not discover leaves that to others.
	deniedFor = time.Minute
)

// recent has the groups that are asked for by themselves, and those that were in the last moments.
// The zero value is ready to use.
type recent struct {
	mu     sync.Mutex
	groups map[string]*recentGroup // guarded by mu
	tried  time.Time               // guarded by mu; when a request last waited for a discovery of kinds that are known
}

// recentGroup is how the members of a target discover a group. The mu of recent guards its fields,
// except shared.
type recentGroup struct {
	shared  sharedDiscovery
	callers int
	found   *kinds    // nil for none
	foundAt time.Time // when it was found
	tooMuch error     // why the group alone was too much; nil if it was not
	until   time.Time // when it may be tried again
}

// begin returns the group, and what was found of it, nil if that is too long ago, or that the group
// was too much. The caller calls end with the group.
func (r *recent) begin(name string) (*recentGroup, *kinds, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	group := r.groups[name]
	if group == nil {
		if r.groups == nil {
			r.groups = map[string]*recentGroup{}
		}
		group = &recentGroup{}
		r.groups[name] = group
	}
	group.callers++
	found, err := group.recent()
	return group, found, err
}

// recent returns what was found, nil if that is too long ago. The caller has the mu.
func (g *recentGroup) recent() (*kinds, error) {
	switch {
	case time.Since(g.foundAt) < anewFor:
		return g.found, nil
	case time.Now().Before(g.until):
		return nil, g.tooMuch
	}
	return nil, nil
}

// setTooMuch notes that the group alone is too much.
func (r *recent) setTooMuch(group *recentGroup, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	group.tooMuch, group.until = err, time.Now().Add(tooMuchFor)
}

// hold keeps the group until end is called, and returns what was found of it since begin.
func (r *recent) hold(group *recentGroup) (*kinds, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	group.callers++
	return group.recent()
}

// end drops the groups that were found too long ago and that no caller asks for.
func (r *recent) end(group *recentGroup) {
	r.mu.Lock()
	defer r.mu.Unlock()
	group.callers--
	for name, g := range r.groups {
		if g.callers == 0 && time.Since(g.foundAt) >= anewFor && !time.Now().Before(g.until) {
			delete(r.groups, name)
		}
	}
}

// found returns the latest that was found of the group.
func (r *recent) found(group *recentGroup) *kinds {
	r.mu.Lock()
	defer r.mu.Unlock()
	return group.found
}

// publish notes what was found of the group, calls publish, and returns the latest.
func (r *recent) publish(group *recentGroup, found *kinds, publish func()) *kinds {
	r.mu.Lock()
	defer r.mu.Unlock()
	if group.found == nil || group.found.at.Before(found.at) {
		group.found, group.foundAt = found, time.Now()
	}
	publish()
	return group.found
}

// mayTry reports whether a request may wait for a discovery: one of all members in rediscoverAfter,
// whether it fails or not.
func (r *recent) mayTry(of *tries) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Before(of.deniedUntil) || !r.tried.IsZero() && now.Sub(r.tried) < rediscoverAfter {
		return false
	}
	r.tried = now
	return true
}

// denied notes that a member whose request has waited may not discover: another one may try.
func (r *recent) denied(of *tries) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of.deniedUntil, r.tried = time.Now().Add(deniedFor), time.Time{}
}

// tries is what is known of a member's discoveries.
type tries struct {
	deniedUntil time.Time                          // guarded by the mu of recent
	doubts      map[schema.GroupVersionKind]*doubt // guarded by the mu of recent
}

// doubt is that a member's requests contradicted what is known of a kind. Each member has its own:
// one whose requests always do, or that may not discover, takes no turn of the others.
type doubt struct {
	until time.Time     // when the kind may be looked up again
	trust time.Duration // how long that was; 0 if nothing was confirmed
}

// mayDoubt reports whether a contradiction is a reason to look the kind up.
func (r *recent) mayDoubt(of *tries, gvk schema.GroupVersionKind, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := of.doubts[gvk]
	return last == nil || !now.Before(last.until)
}

// doubted notes the result of a lookup.
func (r *recent) doubted(of *tries, gvk schema.GroupVersionKind, now time.Time, result doubtResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if result == doubtRight {
		delete(of.doubts, gvk)
		return
	}
	for kind, last := range of.doubts {
		if now.Sub(last.until) > longestTrust { // there was no contradiction for a while
			delete(of.doubts, kind)
		}
	}
	if of.doubts == nil {
		of.doubts = map[schema.GroupVersionKind]*doubt{}
	}
	if of.doubts[gvk] == nil {
		of.doubts[gvk] = &doubt{}
	}
	last := of.doubts[gvk]
	if result == doubtFailed {
		last.until = now.Add(rediscoverAfter)
		return
	}
	last.trust = min(max(2*last.trust, rediscoverAfter), longestTrust)
	last.until = now.Add(last.trust)
}

// doubtResult is what a lookup said about a doubt.
type doubtResult int

const (
	doubtRight  doubtResult = iota // the kind has another resource
	doubtWrong                     // it has not
	doubtFailed                    // nothing is confirmed
)

// discoverGroup returns the kinds of a group, by a discovery that the members share. compare is
// called with them, also if ctx is done before; nil for nothing to do.
func (m *Mapper) discoverGroup(ctx context.Context, name string, compare func(*kinds)) (*kinds, error) {
	group, found, err := m.kinds.anew.begin(name)
	defer m.kinds.anew.end(group)
	if found != nil || err != nil {
		return found, err
	}
	return group.shared.discover(ctx, func(publish func()) (*kinds, error) {
		found, err := m.kinds.anew.hold(group)
		defer m.kinds.anew.end(group)
		if found != nil || err != nil { // another flight has just ended
			return found, err
		}
		found, err = m.askGroup(name)
		if isTooMuch(err) {
			m.kinds.anew.setTooMuch(group, err)
		}
		if err != nil {
			return nil, err
		}
		if compare != nil {
			compare(found)
		}
		return m.kinds.anew.publish(group, found, publish), nil
	}, func() *kinds { return m.kinds.anew.found(group) })
}

// RESTMappingAnew returns the resource of a kind as the API server names it now, by a discovery of
// its group, a second old at most, or a newer one of all. A discovery that fails is an error,
// whatever is known. If the answer differs from what is known, lookups of the group use it from now
// on, and those in other groups discover again.
func (m *Mapper) RESTMappingAnew(ctx context.Context, gk schema.GroupKind, version string) (*meta.RESTMapping, error) {
	ask := func(mapper meta.RESTMapper) (*meta.RESTMapping, error) { return mapper.RESTMapping(gk, version) }
	compare := func(found *kinds) {
		current := m.current(gk.Group)
		if current == nil || !current.at.Before(found.at) {
			return
		}
		mapping, err := answer(found, ask)
		if err != nil && !meta.IsNoMatchError(err) {
			return // this version's discovery failed
		}
		if known, knownErr := answer(current, ask); !sameResource(mapping, err, known, knownErr) {
			m.kinds.forget()
			if len(found.failed) == 0 {
				m.kinds.groups.set(gk.Group, found, m.maxBytes)
			}
		}
	}
	found, err := m.discoverGroup(ctx, gk.Group, compare)
	if err != nil {
		return nil, err
	}
	compare(found) // another caller may have asked, for another kind
	if current := m.current(gk.Group); current != nil && current.at.After(found.at) {
		// A discovery has followed since. Its failure for this version says nothing.
		if mapping, err := answer(current, ask); err == nil || meta.IsNoMatchError(err) {
			return mapping, err
		}
	}
	return answer(found, ask)
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
	from    uint64 // the number of the current kinds before Mapping was looked up; 0 for none
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
		return &Resolved{Mapping: mapping, from: current.generation()}, nil
	}
	if current == nil {
		return last, nil
	}
	if current.stale.Load() && m.kinds.anew.mayTry(&m.tries) {
		m.refresh(ctx, gvk)
		current = m.current(gvk.Group)
	}
	if last.from == current.generation() {
		return last, nil
	}
	mapping, err := current.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return last, nil // the kind is gone, and the request says so
	}
	return &Resolved{Mapping: mapping, from: current.number}, nil
}

// generation returns the number of the discovery, 0 for none.
func (k *kinds) generation() uint64 {
	if k == nil {
		return 0
	}
	return k.number
}

// refresh runs a discovery, for a second at most. What it finds is current then.
func (m *Mapper) refresh(ctx context.Context, gvk schema.GroupVersionKind) {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	switch _, err := m.discover(ctx); {
	case isTooMuch(err):
		_, _ = m.RESTMappingWithContext(ctx, gvk.GroupKind(), gvk.Version) // of the group alone
	case isDenied(err):
		m.kinds.anew.denied(&m.tries)
	}
}

// Doubt is Resolve for a request that makes no sense for last: it looks the kind up, unless that
// was done a short time ago. The time grows while nothing has changed, because some callers always
// send such requests.
func (m *Mapper) Doubt(ctx context.Context, gvk schema.GroupVersionKind, last *Resolved) *Resolved {
	now := time.Now()
	if !m.kinds.anew.mayDoubt(&m.tries, gvk, now) {
		return last
	}
	bounded, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	current := m.current(gvk.Group)
	mapping, err := m.RESTMappingAnew(bounded, gvk.GroupKind(), gvk.Version)
	switch {
	case err != nil && ctx.Err() != nil: // the caller waits no longer
	case err != nil: // what was begun goes on, and the next lookup finds it
		m.kinds.anew.doubted(&m.tries, gvk, now, doubtFailed)
	case sameResource(mapping, nil, last.Mapping, nil):
		m.kinds.anew.doubted(&m.tries, gvk, now, doubtWrong)
	default:
		m.kinds.anew.doubted(&m.tries, gvk, now, doubtRight)
		return &Resolved{Mapping: mapping, from: current.generation()}
	}
	return last
}
