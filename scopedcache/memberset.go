package scopedcache

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/internal/latch"
	"github.com/latchkey-dev/latchkey/internal/replay"
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
	held       map[string]*entry     // guarded by mu: by namespace
	handlers   []*setHandler         // guarded by mu
	indexers   []toolscache.Indexers // guarded by mu: for every informer
	existed    map[string]bool       // guarded by mu: namespaces that the cluster had
	probe      *registration         // guarded by mu: follows the informer of all namespaces
	probed     string                // guarded by mu: the latest version that the probe received
	unknown    error                 // guarded by mu: why the source knows no names; nil if it does
	beyond     int                   // guarded by mu: how many namespaces are left out
	knownSince time.Time             // guarded by mu: since when unknown has its value
	changed    chan struct{}         // guarded by mu: closed after each round
}

func newNamespaceSet(s *scopedCache, k *kind, scope Scope, holder *Handle) *namespaceSet {
	set := &namespaceSet{
		user:    s.user,
		entries: s.entries,
		kind:    k,
		scope:   scope,
		holder:  holder,
		machine: members.New(members.Config{Kind: scope.Namespaces.kind, Max: s.env.options.MaxNamespaces}),
		held:    map[string]*entry{},
		existed: map[string]bool{},
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
	if ended { // by another holder of the same handle
		source.stop()
		return
	}
	if s.scope.Namespaces.kind != members.Listed {
		s.poke()
		return
	}
	s.turn.Lock()
	s.working, s.pending = true, true
	s.turn.Unlock()
	s.work()
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
	var began, left []*entry
	effects := s.machine.Step(s.factsLocked())
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
	s.probeLocked()
	s.mu.Unlock()
	for _, e := range left {
		if s.news != nil {
			s.news.left(e)
		}
	}
	for _, e := range began {
		if e.observe(s.holder, s.memberChanged); s.lacks(e) {
			e.unobserve(s.holder) // the observer, or another holder of the same handle, has released it
		}
	}
	return len(effects) > 0
}

// memberChanged is called when the state of a member changes.
func (s *namespaceSet) memberChanged(now ScopeState) {
	s.poke()
	if s.news != nil {
		s.news.member(now)
	}
}

// lacks reports whether the set does not hold the entry any more.
func (s *namespaceSet) lacks(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[e.selection.scope.Namespace] != e
}

// conclude tells those who wait what has become of the set.
func (s *namespaceSet) conclude() {
	s.mu.Lock()
	close(s.changed)
	s.changed = make(chan struct{})
	settled := !s.ended && s.decidedLocked()
	for _, e := range s.held {
		settled = settled && e.settled.IsOpen()
	}
	handlers := slices.Clone(s.handlers)
	decided := s.decidedLocked()
	s.mu.Unlock()
	if settled {
		s.settled.Open()
	}
	for _, h := range handlers {
		if decided && h.hasAll() {
			h.done.Open()
		}
	}
	if s.news != nil {
		s.news.update()
	}
}

// decidedLocked reports whether it is known which namespaces are in the set, or that this cannot be
// known now. The caller holds mu.
func (s *namespaceSet) decidedLocked() bool {
	if s.scope.Namespaces.kind != members.Allowed {
		return s.unknown == nil || !isNotYet(s.unknown)
	}
	all := s.held[members.All]
	return all != nil && !s.machine.TakesOver() && all.settled.IsOpen() &&
		(s.machine.Feeds(members.All) || s.unknown == nil || !isNotYet(s.unknown))
}

// factsLocked returns what is known. The caller holds mu.
func (s *namespaceSet) factsLocked() members.Facts {
	names, err := s.source.names()
	if errorText(err) != errorText(s.unknown) {
		s.knownSince = time.Now()
	}
	s.unknown = err
	facts := members.Facts{Known: err == nil, Names: names, Gone: map[string]bool{}, Informers: s.informersLocked()}
	for _, h := range s.handlers {
		facts.Recorded = append(facts.Recorded, h.recorded()...)
	}
	slices.Sort(facts.Recorded)
	facts.Recorded = slices.Compact(facts.Recorded)
	if watcher := s.entries.env.options.NamespaceWatcher; watcher != nil {
		before := s.existed
		s.existed = map[string]bool{}
		for _, namespace := range slices.AppendSeq(slices.Clone(facts.Recorded), maps.Keys(s.held)) {
			exists, known := watcher.has(namespace)
			s.existed[namespace] = exists || before[namespace]
			facts.Gone[namespace] = known && !exists && s.existed[namespace]
		}
	}
	facts.CaughtUp = s.caughtUpLocked()
	s.beyond = s.machine.Beyond(facts)
	return facts
}

// informersLocked returns what is known of the informers. The caller holds mu.
func (s *namespaceSet) informersLocked() map[string]members.Informer {
	informers := make(map[string]members.Informer, len(s.held))
	for name, e := range s.held {
		e.mu.Lock()
		informers[name] = members.Informer{
			Synced:    e.state == StateSynced,
			Forbidden: e.state == StateForbidden,
			Served:    e.served,
		}
		e.mu.Unlock()
	}
	return informers
}

// shows reports whether the state of a member is reported by itself.
func (s *namespaceSet) shows(now ScopeState) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := now.Scope.Namespace
	return name != members.All && slices.Contains(s.machine.Members(s.informersLocked()), name)
}

// holdLocked begins to use the scope of a namespace. The caller holds mu.
func (s *namespaceSet) holdLocked(namespace string) *entry {
	s.entries.mu.Lock()
	e := s.entries.entryLocked(s.kind, s.scope.in(namespace), false)
	e.handles = append(e.handles, s.holder)
	s.entries.changed()
	s.entries.mu.Unlock()
	s.held[namespace] = e
	for _, indexers := range s.indexers {
		if err := e.addIndexers(indexers); err != nil {
			s.entries.env.options.Logger.Error(err, "A namespace of a set lacks an indexer", "scope", e.selection.scope.String())
		}
	}
	return e
}

// releaseLocked ends the use of the scope of a namespace. The caller holds mu.
func (s *namespaceSet) releaseLocked(namespace string) {
	e := s.held[namespace]
	delete(s.held, namespace)
	e.unobserve(s.holder)
	s.entries.letGo(e, s.holder)
}

// release implements held.
func (s *namespaceSet) release(*Handle) {
	s.entries.mu.Lock()
	delete(s.entries.sets, s)
	s.entries.mu.Unlock()
	s.mu.Lock()
	s.ended = true
	source := s.source
	s.unprobeLocked()
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
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	if source != nil {
		source.stop()
	}
}

// caughtUpLocked reports whether the informer of all namespaces has all that handlers have received
// from others. The caller holds mu.
func (s *namespaceSet) caughtUpLocked() bool {
	latest := ""
	for _, h := range s.handlers {
		latest = replay.Later(latest, h.latest)
	}
	all := s.held[members.All]
	if latest == "" || all == nil {
		return true
	}
	all.mu.Lock()
	running := all.running
	all.mu.Unlock()
	if running == nil {
		return false
	}
	return hasReached(running.shared.LastSyncResourceVersion(), latest) || hasReached(s.probed, latest)
}

// probeLocked makes the set look at each event of the informer of all namespaces, for as long as
// that takes over. The caller holds mu.
func (s *namespaceSet) probeLocked() {
	if !s.machine.TakesOver() {
		s.unprobeLocked()
		return
	}
	if s.probe != nil {
		return
	}
	seen := func(object any) {
		accessed, err := meta.Accessor(object)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.probed = replay.Later(s.probed, accessed.GetResourceVersion())
		s.mu.Unlock()
		s.poke()
	}
	all := s.held[members.All]
	s.probe, _ = all.add(s.user, toolscache.ResourceEventHandlerFuncs{ // if it has ended, so has the set
		AddFunc:    seen,
		UpdateFunc: func(_, object any) { seen(object) },
		DeleteFunc: seen,
	}, toolscache.HandlerOptions{}, func() { s.poke() })
}

func (s *namespaceSet) unprobeLocked() {
	if s.probe != nil {
		_ = s.probe.entry.remove(s.probe)
	}
	s.probe, s.probed = nil, ""
}

// hasReached reports whether a resource version is at least another one, or cannot be compared.
func hasReached(has, wanted string) bool {
	order, err := resourceversion.CompareResourceVersion(has, wanted)
	return err != nil && has != "" || err == nil && order >= 0
}

// holderName names the set, for the scopes that it needs.
func (s *namespaceSet) holderName() string {
	return cmp.Or(s.holder.options.holder(), "a set of namespaces")
}
