package scopedcache

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/pkg/errors"
)

// Namespaces is a set of namespaces for a [Scope]. Create one with [InNamespaces]. A set does not
// change.
type Namespaces struct{ names []string }

// InNamespaces returns the set of exactly these namespaces, which need not exist. A permission in
// each of them suffices, for example a Role. The informer of each is that of a scope of the
// namespace alone, and is shared with its other users.
//
// Each namespace is on its own: one in which the identity may not list and watch, or whose informer
// hangs or fails, delays no other, and its state changes nothing for the objects of the others. A
// handler of the set may be called by several at the same time. A
// cluster-scoped kind needs no set: with one, it would have an informer of all objects for each
// namespace.
func InNamespaces(names ...string) *Namespaces {
	return &Namespaces{names: slices.Compact(slices.Sorted(slices.Values(names)))}
}

// Names returns the namespaces, sorted, each once.
func (n *Namespaces) Names() []string {
	if n == nil {
		return nil
	}
	return slices.Clone(n.names)
}

// String returns the names with commas between them, "nothing" if there are none.
func (n *Namespaces) String() string {
	if n != nil && len(n.names) == 0 {
		return "nothing"
	}
	return strings.Join(n.Names(), ", ")
}

// place describes the namespaces.
func (s Scope) place() string {
	if s.Namespaces != nil {
		return "the namespaces " + s.Namespaces.String()
	}
	return fmt.Sprintf("namespace %q", s.Namespace)
}

// Members returns the scopes that have an informer each: one for each of Namespaces, or the scope
// itself. Members returns an error if no informer can have the scope.
func (s Scope) Members() ([]Scope, error) {
	if s.selectsNothing() {
		return nil, errors.Errorf("the scope selects nothing (%s): an API server would return all objects", s)
	}
	if s.Namespaces == nil {
		return []Scope{s}, nil
	}
	if s.Namespace != "" {
		return nil, errors.Errorf("the scope has a Namespace (%s) and Namespaces (%s): set one of them", s.Namespace,
			s.Namespaces)
	}
	members := make([]Scope, 0, len(s.Namespaces.names))
	for _, name := range s.Namespaces.names {
		if !isPathSegment(name) {
			return nil, errors.Errorf("the scope has Namespaces of which one cannot exist: %q", name)
		}
		member := s
		member.Namespace, member.Namespaces = name, nil
		members = append(members, member)
	}
	return members, nil
}

// Summarize returns the state of a scope with a set of namespaces from those of its members. It is
// that of all members or, if they differ, [StatePartial] where some are Synced, else that of the
// member with the most severe one. State of [Handle] is that.
func Summarize(scope Scope, members []ScopeState) ScopeState {
	summary := ScopeState{Scope: scope, State: StateSyncing}
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
	case count[StateSyncing] == len(members):
		return summary
	case count[StateSynced] == len(members):
		summary.State = StateSynced
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

// setObserver reports the states of a set's members and of the set, one call at a time.
type setObserver struct {
	handle  *Handle
	observe func(ScopeState)

	mu       sync.Mutex // locked during calls
	reported ScopeState // guarded by mu: the last state of the set
}

// member reports the state of a member and, if it has changed, that of the set. While the members
// only begin to sync, there is nothing to say of the set.
func (o *setObserver) member(now ScopeState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.handle.dead.Load() {
		return // it was released while this call waited
	}
	o.observe(now)
	if o.handle.dead.Load() {
		return
	}
	set := o.handle.summary((*entry).snapshotOfState)
	var partial *PartialError
	begins := set.State == StateSyncing || errors.As(set.LastError, &partial) && len(partial.Unwrap()) == 0
	if before := o.reported; !begins &&
		(before.State != set.State || errorText(before.LastError) != errorText(set.LastError)) {
		o.reported = set
		o.observe(set)
	}
}
