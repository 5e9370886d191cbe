package scopedcache

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/rbacindex"
)

// entrySet holds the entries of a cache. The cache starts once and stops once.
type entrySet struct {
	env *environment

	mu       sync.Mutex             // after entry.mu
	life     context.Context        // guarded by mu; nil before Start, then never changed
	ended    bool                   // guarded by mu
	running  sync.WaitGroup         // Add only under mu before ended is set, or while it is not zero
	entries  map[*entry]struct{}    // guarded by mu
	selected map[selectedKey]*entry // guarded by mu: the entries with selectors of their own
	indexes  map[kindKey][]index    // guarded by mu; existing elements do not change

	sets     map[*namespaceSet]struct{}          // guarded by mu: of handles that are not released
	subjects atomic.Pointer[[]rbacindex.Subject] // of the cache's identity; nil until they are known

	names *nameReviews
}

func newEntrySet(env *environment) *entrySet {
	return &entrySet{
		env:      env,
		entries:  map[*entry]struct{}{},
		selected: map[selectedKey]*entry{},
		indexes:  map[kindKey][]index{},
		sets:     map[*namespaceSet]struct{}{},
		names:    newNameReviews(env.options.AccessReviewInterval),
	}
}

// selectedKey names a scope with selectors of its own.
type selectedKey struct {
	kind *kind
	scopeKey
}

// index is a field index that every informer of its kind has.
type index struct {
	field   string
	extract client.IndexerFunc
}

// newEntry returns an entry that is not in the set yet.
func (s *entrySet) newEntry(k *kind, scope Scope) *entry {
	return &entry{
		env:       s.env,
		entries:   s,
		selection: selection{kind: k, scope: scope},
		requires:  requirementsOf(scope),
		state:     StateSyncing,
		since:     time.Now(),
	}
}

// startLocked runs a scope if the cache runs. The caller holds mu.
func (s *entrySet) startLocked(e *entry) {
	if s.life == nil || s.ended {
		return
	}
	e.end = startRun(s.life, e)
}

// findLocked returns the entry of the scope, nil if there is none. The caller holds mu.
func (s *entrySet) findLocked(k *kind, key scopeKey) *entry {
	if key.selective() {
		return s.selected[selectedKey{k, key}]
	}
	if existing, ok := k.entries.Load(key.namespace); ok {
		return existing.(*entry)
	}
	return nil
}

// entryLocked returns the entry of the scope, and creates it on first use: then began is true, and
// the caller starts it. named says whether reads begin the scope for one name. The caller holds mu.
func (s *entrySet) entryLocked(k *kind, scope Scope, named bool) (e *entry, began bool) {
	key := scope.key()
	if existing := s.findLocked(k, key); existing != nil {
		return existing, false
	}
	e = s.newEntry(k, scope)
	e.named = named
	s.entries[e] = struct{}{}
	if key.selective() {
		s.selected[selectedKey{k, key}] = e
		k.selectLocked(e)
	} else {
		k.entries.Store(key.namespace, e)
		k.countLocked(1)
	}
	return e, true
}

// dropLocked ends a scope that has no use any more. The caller holds mu.
func (s *entrySet) dropLocked(e *entry) {
	if _, ok := s.entries[e]; !ok {
		return
	}
	delete(s.entries, e)
	key := e.selection.scope.key()
	if s.selected[selectedKey{e.selection.kind, key}] == e {
		delete(s.selected, selectedKey{e.selection.kind, key})
		e.selection.kind.deselectLocked(e)
	} else {
		e.selection.kind.entries.Delete(key.namespace)
		e.selection.kind.countLocked(-1)
	}
	if e.end != nil {
		e.end()
	}
}

// hasRoomForName reports whether a user's reads may use the scope of one more name, or use it
// already.
func (s *entrySet) hasRoomForName(u *user, k *kind, scope Scope) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.named < maxNamedScopes {
		return true
	}
	e := s.findLocked(k, scope.key())
	return e != nil && u.use(e) != nil
}

// holder names a holder, for people.
func (o *HoldOptions) holder() string { return strings.TrimSpace(o.Name + " " + string(o.Dependent)) }

func (s *entrySet) indexesOf(k *kind) []index {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.indexes[k.kindKey]
}

// eventsWatchedChanged makes all scopes ask whether RBAC events are watched.
func (s *entrySet) eventsWatchedChanged() {
	s.mu.Lock()
	for e := range s.entries {
		e.mail.markWatched()
	}
	s.mu.Unlock()
	s.pokeSets(false)
}

// accessMayHaveChanged makes scopes review their access again: the scopes of a namespace, or all if
// namespace is empty.
func (s *entrySet) accessMayHaveChanged(namespace string) {
	s.names.forget(namespace)
	s.mu.Lock()
	for e := range s.entries {
		if namespace == "" || e.selection.concerns() == namespace {
			e.mail.accessMayHaveChanged()
		}
	}
	s.mu.Unlock()
	s.pokeSets(false)
}
