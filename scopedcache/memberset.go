package scopedcache

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/internal/latch"
	"github.com/latchkey-dev/latchkey/internal/versions"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/members"
)

// namespaceSet is what a handle of a set of namespaces holds: a scope for each of them, which come
// and go. A machine decides which; namespaceSet collects what is known and does what the machine
// says, in one goroutine at a time.
type namespaceSet struct {
	user    *user
	entries *entrySet
	kind    *kind
	scope   Scope // as the caller requested it
	holder  *Handle
	source  nameSource
	news    *setObserver // nil without OnStateChange
	settled latch.Latch  // it is known which namespaces there are, and the result of reading each

	turn    sync.Mutex // before entries.mu
	pending bool       // guarded by turn: something may have changed
	working bool       // guarded by turn: a goroutine works

	mu         sync.Mutex // before entry.mu
	ended      bool       // guarded by mu
	machine    members.Machine
	held       map[string]*use       // guarded by mu: by namespace
	handlers   []*setHandler         // guarded by mu
	indexers   []toolscache.Indexers // guarded by mu: for every informer
	again      *time.Timer           // guarded by mu: makes the set look again; nil if it need not
	unknown    error                 // guarded by mu: why the source knows no names; nil if it does
	knownSince time.Time             // guarded by mu: since when unknown has its value
	changed    chan struct{}         // guarded by mu: closed after each round
	forbidden  bool                  // only the goroutine that works uses it: the log has it
}

func newNamespaceSet(s *scopedCache, k *kind, scope Scope, holder *Handle) *namespaceSet {
	set := &namespaceSet{
		user:    s.user,
		entries: s.entries,
		kind:    k,
		scope:   scope,
		holder:  holder,
		machine: members.New(members.Config{Kind: scope.Namespaces.kind, Max: s.env.options.MaxNamespaces}),
		held:    map[string]*use{},
		unknown: errNotYet,
		changed: make(chan struct{}),

		knownSince: time.Now(),
	}
	if observe := holder.options.OnStateChange; observe != nil {
		set.news = &setObserver{set: set, observe: observe, members: map[string]struct{}{}}
	}
	return set
}

// begin begins the set. A set whose namespaces are listed has them when begin returns.
func (s *namespaceSet) begin(source nameSource) {
	s.mu.Lock()
	s.source = source
	ended := s.ended
	s.mu.Unlock()
	s.entries.mu.Lock()
	ended = ended || s.entries.ended
	s.entries.mu.Unlock()
	if ended { // by another holder of the same handle, or with the cache
		source.stop()
		return
	}
	if s.scope.Namespaces.kind != members.Listed {
		s.poke()
		return
	}
	s.turn.Lock()
	s.pending = true
	busy := s.working
	s.working = true
	s.turn.Unlock()
	if !busy { // else a goroutine has begun, because the cache runs
		s.work()
	}
}

// poke makes the set look again at what is known. It never blocks, and may be called from any
// goroutine that does not hold entries.mu.
func (s *namespaceSet) poke() {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.pending = true
	if !s.working {
		s.working = s.entries.goWhileRunning(s.work)
	}
}

// work looks at what is known until nothing has changed meanwhile.
func (s *namespaceSet) work() {
	for s.takePending() {
		for s.round() {
		}
		s.conclude()
	}
}

func (s *namespaceSet) takePending() bool {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.working = s.pending
	s.pending = false
	return s.working
}

// round does what the machine says, and reports whether there was anything.
func (s *namespaceSet) round() bool {
	s.mu.Lock()
	if s.ended || s.source == nil {
		s.mu.Unlock()
		return false
	}
	effects := s.machine.Step(s.factsLocked())
	var began, left []*use
	for _, effect := range effects {
		switch effect.Do {
		case members.Hold:
			began = append(began, s.holdLocked(effect.Namespace))
		case members.Release:
			left = append(left, s.held[effect.Namespace])
			s.releaseLocked(effect.Namespace)
		default:
			for _, h := range s.handlers {
				h.do(effect)
			}
		}
	}
	if s.again != nil {
		s.again.Stop()
		s.again = nil
	}
	if pause := s.machine.Outcome().Again; len(effects) == 0 && pause > 0 {
		s.again = time.AfterFunc(pause, s.poke)
	}
	s.mu.Unlock()
	for _, of := range left {
		if s.news != nil {
			s.news.left(of.entry.selection.scope.Namespace)
		}
	}
	for _, of := range began {
		if of.entry.observe(s.holder, s.memberChanged); s.lacks(of) {
			of.entry.unobserve(s.holder) // the observer, or another holder of the same handle, has released it
		}
	}
	return len(effects) > 0
}

// errClusterScoped is why a set has no namespaces.
var errClusterScoped = errors.New("the kind is cluster-scoped, so a Scope with Namespaces would have an informer of " +
	"all objects for each: leave Namespaces out")

// memberChanged is called when the state of a member changes.
func (s *namespaceSet) memberChanged(now ScopeState) {
	s.poke()
	if s.news != nil {
		s.news.member(now)
	}
}

// lacks reports whether the set does not hold the scope any more.
func (s *namespaceSet) lacks(of *use) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[of.entry.selection.scope.Namespace] != of
}

// conclude tells those who wait what has become of the set.
func (s *namespaceSet) conclude() {
	s.mu.Lock()
	close(s.changed)
	s.changed = make(chan struct{})
	decided := s.machine.Outcome().Decided && !s.ended
	settled := decided
	for _, of := range s.held {
		settled = settled && of.entry.settled.IsOpen()
	}
	handlers := slices.Clone(s.handlers)
	s.mu.Unlock()
	if settled {
		s.settled.Open()
	}
	for _, h := range handlers {
		if decided && h.hasAll() {
			h.done.Open()
		}
	}
	s.log()
	if s.news != nil {
		s.news.update()
	}
}

// log logs that the set has become Forbidden by itself, or no longer is. The members log what
// becomes of them.
func (s *namespaceSet) log() {
	now := s.summary((*use).snapshotOfState)
	forbidden := now.State == StateForbidden && len(s.membersNow()) == 0
	if forbidden == s.forbidden || now.State == StateSyncing {
		return
	}
	s.forbidden = forbidden
	before := StateForbidden
	if forbidden {
		before = StateSynced
	}
	logChange(s.entries.env.options.Logger, before, now)
}

// factsLocked returns what is known. The caller holds mu.
func (s *namespaceSet) factsLocked() members.Facts {
	names, err := s.source.names()
	if mapping := s.kind.mapping.Load(); mapping != nil && mapping.Scope.Name() == meta.RESTScopeNameRoot {
		err = errClusterScoped
	}
	if errorText(err) != errorText(s.unknown) {
		s.knownSince = time.Now()
	}
	s.unknown = err
	facts := members.Facts{
		Now:           time.Now(),
		ClusterScoped: errors.Is(err, errClusterScoped),
		Known:         err == nil,
		Awaited:       isNotYet(err),
		Names:         names,
		Received:      versions.ByNamespace{},
		Resumed:       versions.ByNamespace{},
	}
	watcher := s.entries.env.options.NamespaceWatcher
	for _, h := range s.handlers {
		facts.Recorded = append(facts.Recorded, h.recorded()...)
		if s.isAllowed() || watcher != nil {
			facts.Received.NoteAll(h.received())
			facts.Resumed.NoteAll(h.resumed)
		}
	}
	slices.Sort(facts.Recorded)
	facts.Recorded = slices.Compact(facts.Recorded)
	facts.Informers = s.informersLocked() // after Received: no version is older than what came from there
	if watcher != nil {
		facts.ExistsAt = watcher.version() // before has: what has says is not older
		facts.Exists = map[string]bool{}
		for _, namespace := range slices.AppendSeq(slices.Clone(facts.Recorded), maps.Keys(s.held)) {
			if exists, known := watcher.has(namespace); known {
				facts.Exists[namespace] = exists
			}
		}
	}
	return facts
}

// informersLocked returns what is known of the informers. The caller holds mu.
func (s *namespaceSet) informersLocked() map[string]members.Informer {
	informers := make(map[string]members.Informer, len(s.held))
	for name, of := range s.held {
		e := of.entry
		e.mu.Lock()
		i := members.Informer{
			Synced:    e.state == StateSynced && of.isFreshLocked(),
			Forbidden: e.state == StateForbidden,
			NotServed: e.state == StateNotServed,
			Served:    e.served,
		}
		running := e.running
		e.mu.Unlock()
		i.Version = running.version()
		informers[name] = i
	}
	return informers
}

// version returns the resource version that the informer has reached; empty before its first list
// is in the store, and for no informer.
func (i *informer) version() string {
	if i == nil {
		return ""
	}
	return i.shared.LastSyncResourceVersion()
}

// shows reports whether the state of a member is reported by itself.
func (s *namespaceSet) shows(now ScopeState) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := now.Scope.Namespace
	return name != members.All && slices.Contains(s.machine.Members(s.informersLocked()), name)
}

// holdLocked begins to use the scope of a namespace. The caller holds mu.
func (s *namespaceSet) holdLocked(namespace string) *use {
	s.entries.mu.Lock()
	of := s.entries.useLocked(s.user, s.kind, s.scope.in(namespace), false)
	of.entry.handles = append(of.entry.handles, s.holder)
	s.entries.holdersChangedLocked(of)
	s.entries.mu.Unlock()
	s.held[namespace] = of
	for _, indexers := range s.indexers {
		if err := of.addIndexers(indexers); err != nil {
			s.entries.env.options.Logger.Error(err, "A namespace of a set lacks an indexer", "scope",
				of.entry.selection.scope.String())
		}
	}
	return of
}

// releaseLocked ends the use of the scope of a namespace. The caller holds mu.
func (s *namespaceSet) releaseLocked(namespace string) {
	of := s.held[namespace]
	delete(s.held, namespace)
	of.entry.unobserve(s.holder)
	s.entries.letGo(of, s.holder)
}

// release implements held.
func (s *namespaceSet) release(*Handle) {
	s.entries.mu.Lock()
	delete(s.entries.sets, s)
	s.entries.mu.Unlock()
	s.mu.Lock()
	s.ended = true
	if s.again != nil {
		s.again.Stop()
	}
	for _, effect := range s.machine.Stop() {
		switch effect.Do {
		case members.Release:
			s.releaseLocked(effect.Namespace)
		default:
			for _, h := range s.handlers {
				h.do(effect)
			}
		}
	}
	for _, h := range s.handlers {
		h.put(h.take(members.All)) // no deletion is delivered any more
	}
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	s.stopSource()
}

// stopSource ends what follows namespaces for the set: others may share it.
func (s *namespaceSet) stopSource() {
	s.mu.Lock()
	source := s.source
	s.mu.Unlock()
	if source != nil {
		source.stop()
	}
}

// holderName names the set, for the scopes that it needs.
func (s *namespaceSet) holderName() string {
	return cmp.Or(s.holder.options.holder(), "a set of namespaces")
}

func (s *namespaceSet) isAllowed() bool { return s.scope.Namespaces.kind == members.Allowed }
