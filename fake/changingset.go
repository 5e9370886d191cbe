package fake

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/internal/versions"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// changingSet is the informer of a set whose namespaces change: those with labels, or wherever
// Forbid forbids nothing. It has one informer of all namespaces, and lets the events pass of those
// that are in the set and permitted now.
type changingSet struct {
	conn       *connection
	gvk        schema.GroupVersionKind
	scope      scopedcache.Scope
	all        *informer // whatever Forbid forbids
	namespaces *informer // of Namespaces; nil for a set of permissions
	observe    func(scopedcache.ScopeState)

	reporting sync.Mutex                        // locked during calls of observe
	reported  map[string]scopedcache.ScopeState // guarded by reporting: by namespace; that of the set has no name

	mu            sync.Mutex
	subscriptions []*changingSubscription // guarded by mu
	heard         map[string]bool         // guarded by mu: namespaces whose objects handlers may know
}

// holdChanging is Hold for a set whose namespaces change.
func (c *connection) holdChanging(object client.Object, scope scopedcache.Scope,
	observe func(scopedcache.ScopeState)) (watches.Informer, error) {
	gvk, err := apiutil.GVKForObject(object, c.testClient.Scheme())
	if err != nil {
		return nil, errors.WithStack(err)
	}
	s := &changingSet{
		conn:     c,
		gvk:      gvk,
		scope:    scope,
		observe:  observe,
		heard:    map[string]bool{},
		reported: map[string]scopedcache.ScopeState{},
	}
	ofAll := scope
	ofAll.Namespaces = nil
	if scope.Namespaces.LabelSelector() != nil {
		if s.namespaces, err = c.newInformer(&corev1.Namespace{}, scopedcache.Scope{}, nil, func() {}); err != nil {
			return nil, errors.WithMessage(err, "the labels of namespaces")
		}
		_, err = s.namespaces.current().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { s.look() },
			UpdateFunc: func(any, any) { s.look() },
			DeleteFunc: func(any) { s.look() },
		})
		if err != nil {
			s.namespaces.Release()
			return nil, errors.WithStack(err)
		}
	}
	if s.all, err = c.newInformer(object, ofAll, nil, s.look); err != nil {
		if s.namespaces != nil {
			s.namespaces.Release()
		}
		return nil, err
	}
	s.look()
	return s, nil
}

// passage says what becomes of the events of a namespace.
type passage int

const (
	passes    passage = iota // handlers receive them
	waits                    // permission is missing; what handlers know stays
	isOutside                // the namespace is not in the set; handlers know nothing of it
)

// of returns what becomes of the events of a namespace.
func (s *changingSet) of(namespace string) passage {
	if s.namespaces != nil {
		object, exists, err := s.namespaces.current().GetStore().GetByKey(namespace)
		in := err == nil && exists &&
			s.scope.Namespaces.LabelSelector().Matches(labels.Set(object.(client.Object).GetLabels()))
		if !in {
			return isOutside
		}
	}
	if s.permitted(namespace) {
		return passes
	}
	return waits
}

// permitted reports whether Forbid forbids nothing of the scope in a namespace, or in all.
func (s *changingSet) permitted(namespace string) bool {
	return s.conn.access.permits(s.gvk.GroupKind(), namespace, nameIn(s.scope.FieldSelector), "watch")
}

// look makes handlers and the observer learn what has changed.
func (s *changingSet) look() {
	s.mu.Lock()
	subscriptions := slices.Clone(s.subscriptions)
	s.mu.Unlock()
	for _, one := range subscriptions {
		one.enqueue(one.reconcile)
	}
	s.report()
}

// states returns the states of the members, by namespace.
func (s *changingSet) states() map[string]scopedcache.ScopeState {
	names := map[string]bool{}
	if s.namespaces != nil {
		for _, name := range s.namespaces.current().GetStore().ListKeys() {
			names[name] = true
		}
	} else if !s.permitted("") {
		s.mu.Lock()
		maps.Copy(names, s.heard)
		s.mu.Unlock()
	}
	states := map[string]scopedcache.ScopeState{}
	for name := range names {
		scope := s.scope
		scope.Namespace, scope.Namespaces = name, nil
		state := scopedcache.ScopeState{GVK: s.gvk, Scope: scope, State: scopedcache.StateSynced}
		switch s.of(name) {
		case isOutside:
			continue
		case waits:
			state.State, state.LastError = scopedcache.StateForbidden, s.conn.forbidden(s.gvk, name, "", "list")
		}
		states[name] = state
	}
	return states
}

// report reports the states of members and of the set that have changed.
func (s *changingSet) report() {
	s.reporting.Lock()
	defer s.reporting.Unlock()
	states := s.states()
	set := scopedcache.Summarize(s.scope, slices.SortedFunc(maps.Values(states),
		func(x, y scopedcache.ScopeState) int { return cmp.Compare(x.Scope.Namespace, y.Scope.Namespace) }))
	if s.namespaces == nil && len(states) == 0 && !s.permitted("") {
		set.State, set.LastError = scopedcache.StateForbidden, s.conn.forbidden(s.gvk, "", "", "list")
	}
	for name, before := range s.reported {
		if _, stays := states[name]; !stays && name != "" {
			before.State, before.LastError = scopedcache.StateLeft, nil
			s.observe(before)
			delete(s.reported, name)
		}
	}
	states[""] = set
	for name, state := range states {
		if before := s.reported[name]; before.State != state.State {
			s.reported[name] = state
			s.observe(state)
		}
	}
}

// Release implements watches.Informer.
func (s *changingSet) Release() {
	s.all.Release()
	if s.namespaces != nil {
		s.namespaces.Release()
	}
}

// Subscribe implements watches.Informer.
func (s *changingSet) Subscribe(handler toolscache.ResourceEventHandler, options replay.Options) (watches.Subscription,
	error) {
	one := &changingSubscription{
		set:   s,
		feed:  replay.New(handler, s.all.example, options),
		known: map[string]client.Object{},
		shut:  map[string]bool{},
	}
	one.source = one.feed.Begin()
	s.mu.Lock()
	s.subscriptions = append(s.subscriptions, one)
	s.mu.Unlock()
	running := s.all.current()
	handle, err := running.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { one.enqueue(func() { one.changed(object.(client.Object)) }) },
		UpdateFunc: func(_, object any) { one.enqueue(func() { one.changed(object.(client.Object)) }) },
		DeleteFunc: func(object any) { one.enqueue(func() { one.gone(object) }) },
	})
	if err != nil {
		one.feed.Pause() // the caller keeps options.Seen
		return nil, errors.WithStack(err)
	}
	synced := []<-chan struct{}{handle.HasSyncedChecker().Done()}
	if s.namespaces != nil {
		synced = append(synced, s.namespaces.current().HasSyncedChecker().Done())
	}
	s.conn.Go(func() {
		for _, each := range synced {
			select {
			case <-each:
			case <-s.conn.life.Done():
				return
			}
		}
		one.enqueue(one.reconcile)
		one.enqueue(func() {
			one.source.EmitMissingDeletes(func(key string) bool {
				namespace, _, _ := toolscache.SplitMetaNamespaceKey(key)
				_, exists, _ := running.GetStore().GetByKey(key)
				passage := s.of(namespace)
				return passage == waits || passage == passes && exists
			})
		})
	})
	return one, nil
}

// changingSubscription is a handler of a changingSet. What it does, it does one after the other.
type changingSubscription struct {
	set    *changingSet
	feed   *replay.Feed
	source *replay.Source
	known  map[string]client.Object // by key; what the handler has received
	shut   map[string]bool          // namespaces that wait for permission

	mu      sync.Mutex
	queue   []func() // guarded by mu
	working bool     // guarded by mu
}

// enqueue calls f after what was enqueued before.
func (s *changingSubscription) enqueue(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue = append(s.queue, f); !s.working {
		s.working = true
		s.set.conn.Go(s.work)
	}
}

func (s *changingSubscription) work() {
	for {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.working = false
			s.mu.Unlock()
			return
		}
		next := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()
		next()
	}
}

// changed passes on that an object was created or has changed.
func (s *changingSubscription) changed(object client.Object) {
	key := client.ObjectKeyFromObject(object)
	before := s.known[keyOf(key)]
	if s.set.of(key.Namespace) != passes || before != nil &&
		versions.Later(before.GetResourceVersion(), object.GetResourceVersion()) == before.GetResourceVersion() {
		return
	}
	s.known[keyOf(key)] = object
	s.set.mu.Lock()
	s.set.heard[key.Namespace] = true
	s.set.mu.Unlock()
	if before == nil {
		s.source.OnAdd(object, false)
	} else {
		s.source.OnUpdate(before, object)
	}
}

// gone passes on that an object was deleted.
func (s *changingSubscription) gone(object any) {
	deleted := object
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		deleted = unknown.Obj
	}
	key := client.ObjectKeyFromObject(deleted.(client.Object))
	if s.known[keyOf(key)] != nil && s.set.of(key.Namespace) == passes {
		delete(s.known, keyOf(key))
		s.source.OnDelete(object)
	}
}

// reconcile makes the handler know the objects of the namespaces that are in the set and permitted,
// and forget those that are not in the set.
func (s *changingSubscription) reconcile() {
	store := s.set.all.current().GetStore()
	reopened := map[string]bool{}
	passage := func(namespace string) passage {
		now := s.set.of(namespace)
		if now == passes && s.shut[namespace] {
			reopened[namespace] = true
		}
		s.shut[namespace] = now == waits
		return now
	}
	for key, object := range maps.Clone(s.known) {
		now := passage(object.GetNamespace())
		_, exists, _ := store.GetByKey(key)
		if now == isOutside || now == passes && !exists {
			delete(s.known, key)
			s.source.OnDelete(toolscache.DeletedFinalStateUnknown{Key: key, Obj: object})
		}
	}
	for _, stored := range store.List() {
		object := stored.(client.Object)
		if passage(object.GetNamespace()) == passes && reopened[object.GetNamespace()] {
			delete(s.known, keyOf(client.ObjectKeyFromObject(object))) // it is added again
		}
		s.changed(object)
	}
}

func keyOf(key client.ObjectKey) string { return toolscache.ObjectName(key).String() }

// Seen implements watches.Subscription.
func (s *changingSubscription) Seen() replay.Seen { return s.feed.Seen() }

// Remove implements watches.Subscription.
func (s *changingSubscription) Remove() {
	s.feed.Pause()
	s.set.mu.Lock()
	defer s.set.mu.Unlock()
	s.set.subscriptions = slices.DeleteFunc(s.set.subscriptions, func(other *changingSubscription) bool {
		return other == s
	})
}
