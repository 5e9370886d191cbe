package fake

import (
	"maps"
	"sync"

	"github.com/pkg/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// informerSet is the informers of a set of namespaces.
type informerSet struct {
	members []scopedcache.Scope
	each    []watches.Informer
}

// holdSet is Hold for a scope with a set of namespaces.
func (c *connection) holdSet(object client.Object, scope scopedcache.Scope,
	observe func(scopedcache.ScopeState)) (watches.Informer, error) {
	members, err := scope.Members()
	if err != nil {
		return nil, err
	}
	set, states := &informerSet{members: members}, newSetStates(scope, members, observe)
	for n, member := range members {
		informer, err := c.hold(object, member, func(state scopedcache.ScopeState) { states.report(n, state) })
		if err != nil {
			set.Release()
			return nil, err
		}
		set.each = append(set.each, informer)
	}
	return set, nil
}

// setStates reports the states of members and of their set.
type setStates struct {
	scope   scopedcache.Scope
	observe func(scopedcache.ScopeState)

	mu     sync.Mutex
	states []scopedcache.ScopeState // guarded by mu: of the members
}

func newSetStates(scope scopedcache.Scope, members []scopedcache.Scope,
	observe func(scopedcache.ScopeState)) *setStates {
	s := &setStates{scope: scope, observe: observe}
	for _, member := range members {
		s.states = append(s.states, scopedcache.ScopeState{Scope: member, State: scopedcache.StateSyncing})
	}
	return s
}

// report reports the state of a member, and that of the set.
func (s *setStates) report(n int, state scopedcache.ScopeState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state.Scope = s.states[n].Scope
	s.states[n] = state
	s.observe(state)
	set := scopedcache.Summarize(s.scope, s.states)
	var partial *scopedcache.PartialError
	if begins := errors.As(set.LastError, &partial) && len(partial.Unwrap()) == 0; !begins {
		s.observe(set)
	}
}

// Subscribe implements watches.Informer.
func (s *informerSet) Subscribe(handler toolscache.ResourceEventHandler, options replay.Options) (watches.Subscription,
	error) {
	all := setSubscription{}
	options.Turn = replay.NewTurn()
	for n, informer := range s.each {
		own := options
		own.Seen = maps.Clone(options.Seen)
		maps.DeleteFunc(own.Seen, func(key client.ObjectKey, _ replay.Object) bool {
			return key.Namespace != s.members[n].Namespace
		})
		one, err := informer.Subscribe(handler, own)
		if err != nil {
			all.Remove()
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// Release implements watches.Informer.
func (s *informerSet) Release() {
	for _, informer := range s.each {
		informer.Release()
	}
}

// setSubscription is the subscriptions of one handler to all informers of a set.
type setSubscription []watches.Subscription

// Seen implements watches.Subscription.
func (s setSubscription) Seen() replay.Seen {
	seen := replay.Seen{}
	for _, one := range s {
		maps.Copy(seen, one.Seen())
	}
	return seen
}

// Remove implements watches.Subscription.
func (s setSubscription) Remove() {
	for _, one := range s {
		one.Remove()
	}
}
