package scopedcache

import (
	"slices"
	"sync"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/members"
)

// Summarize returns the state of a scope with a set of namespaces from those of its members. It is
// that of all members or, if they differ, [StatePartial] where some are Synced, else that of the
// member with the most severe one. A set without members is Synced. State of [Handle] is that.
func Summarize(scope Scope, members []ScopeState) ScopeState {
	summary := ScopeState{Scope: scope, State: StateSynced}
	count := map[State]int{}
	for _, member := range members {
		count[member.State]++
		summary.GVK, summary.Representation = member.GVK, member.Representation
		summary.Objects += member.Objects
		if member.Since.After(summary.Since) {
			summary.Since = member.Since
		}
	}
	switch {
	case count[StateSynced] == len(members):
		return summary
	case count[StateSyncing] == len(members):
		summary.State = StateSyncing
		return summary
	case count[StateSynced]+count[StatePartial] > 0:
		summary.State = StatePartial
	default:
		for _, state := range []State{StateNotServed, StateLive, StateForbidden, StateFailing} {
			if count[state] > 0 {
				summary.State = state
			}
		}
	}
	others := slices.DeleteFunc(slices.Clone(members), func(m ScopeState) bool { return m.State == StateSynced })
	summary.LastError = &PartialError{Members: others, Of: len(members)}
	return summary
}

// errNotYet is why the namespaces of a set are not known at first.
var errNotYet = errors.New("the namespaces have not been listed yet")

// summary returns the state of the set.
func (s *namespaceSet) summary(of func(*entry) ScopeState) ScopeState {
	s.mu.Lock()
	var entries []*entry
	for _, name := range s.machine.Members(s.informersLocked()) {
		entries = append(entries, s.held[name])
	}
	all, unknown, beyond, since := s.held[members.All], s.unknown, s.beyond, s.knownSince
	whole, decided := s.machine.Feeds(members.All), s.decidedLocked()
	s.mu.Unlock()
	states := make([]ScopeState, len(entries))
	for i, e := range entries {
		states[i] = of(e)
	}
	if whole || len(states) == 0 && all != nil { // the informer of all namespaces says how it is
		now := of(all)
		if now.Scope = s.scope; !decided {
			now.State, now.LastError = StateSyncing, nil
		} else if unknown != nil && now.State == StateForbidden {
			now.LastError = errors.WithMessage(now.LastError, unknown.Error())
		}
		return now
	}
	summary := Summarize(s.scope, states)
	summary.GVK, summary.Representation = s.kind.gvk, s.kind.representation
	if len(states) == 0 {
		summary.Since = since
	}
	if unknown == nil && beyond == 0 {
		return summary
	}
	partial := &PartialError{Of: len(states), Unknown: unknown, Beyond: beyond}
	if known := (*PartialError)(nil); errors.As(summary.LastError, &known) {
		partial.Members = known.Members
	}
	switch {
	case len(states) > 0 && summary.State == StateSynced:
		summary.State = StatePartial
	case len(states) == 0 && errors.Is(unknown, errNotYet):
		summary.State = StateSyncing
		return summary
	case len(states) == 0 && apierrors.IsForbidden(unknown):
		summary.State = StateForbidden
	case len(states) == 0:
		summary.State = StateFailing
	}
	summary.LastError = partial
	return summary
}

// setObserver reports the states of a set's members and of the set, one call at a time.
type setObserver struct {
	set     *namespaceSet
	observe func(ScopeState)

	mu       sync.Mutex          // locked during calls
	reported ScopeState          // guarded by mu: the last state of the set
	members  map[string]struct{} // guarded by mu: the namespaces whose states were reported
}

// member reports the state of a member and, if it has changed, that of the set.
func (o *setObserver) member(now ScopeState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.set.holder.dead.Load() {
		return // it was released while this call waited
	}
	if o.set.shows(now) {
		o.members[now.Scope.Namespace] = struct{}{}
		o.observe(now)
	}
	o.setLocked()
}

// left reports that a namespace is no longer in the set, if its states were reported.
func (o *setObserver) left(e *entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	namespace := e.selection.scope.Namespace
	if _, reported := o.members[namespace]; !reported || o.set.holder.dead.Load() {
		return
	}
	delete(o.members, namespace)
	state := e.snapshotOfState()
	state.State, state.LastError = StateLeft, nil
	o.observe(state)
}

// update reports the state of the set, if it has changed.
func (o *setObserver) update() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.setLocked()
}

// setLocked reports the state of the set, if it has changed. While the members only begin to sync,
// there is nothing to say of the set. The caller holds mu.
func (o *setObserver) setLocked() {
	if o.set.holder.dead.Load() {
		return
	}
	set := o.set.summary((*entry).snapshotOfState)
	var partial *PartialError
	begins := set.State == StateSyncing || errors.As(set.LastError, &partial) && partial.begins()
	if before := o.reported; !begins &&
		(before.State != set.State || errorText(before.LastError) != errorText(set.LastError)) {
		o.reported = set
		o.observe(set)
	}
}
