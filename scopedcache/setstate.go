package scopedcache

import (
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/members"
)

// Summarize returns the state of a scope with a set of namespaces from those of its members. It is
// that of all members or, if they differ, [StatePartial] where some are Synced, else that of the
// member with the most severe one. A set without members is Synced. State of a [Handle] also says
// if it is not known which namespaces are in the set, or if some are left out, which Summarize
// cannot know; and a set of [WhereverAllowed] without members is Forbidden.
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
func (s *namespaceSet) summary(of func(*use) ScopeState) ScopeState {
	s.mu.Lock()
	var uses []*use
	for _, name := range s.machine.Members(s.informersLocked()) {
		uses = append(uses, s.held[name])
	}
	all, whole, since, outcome := s.held[members.All], s.machine.Feeds(members.All), s.knownSince, s.machine.Outcome()
	lacks := &PartialError{NamespacesErr: s.unknown, LeftOut: outcome.LeftOut, Kept: outcome.Kept, Of: len(uses)}
	s.mu.Unlock()
	if tried := all; tried != nil && !whole && lacks.NamespacesErr == nil {
		if now := tried.snapshotOfState(); now.State == StateFailing {
			lacks.NamespacesErr = errors.WithMessage(now.LastError, "listing all namespaces")
		}
	}
	if whole || len(uses) == 0 && all != nil {
		return s.summaryOfAll(of(all), outcome.Decided || whole, lacks)
	}
	states := make([]ScopeState, len(uses))
	for i, member := range uses {
		states[i] = of(member)
	}
	summary := Summarize(s.scope, states)
	summary.GVK, summary.Representation = s.kind.gvk, s.kind.representation
	if len(states) == 0 {
		summary.Since = since
	}
	if lacks.NamespacesErr == nil && lacks.LeftOut == 0 && lacks.Kept == 0 {
		return summary
	}
	if known := (*PartialError)(nil); errors.As(summary.LastError, &known) {
		lacks.Members = known.Members
	}
	switch {
	case len(states) > 0 && summary.State == StateSynced:
		summary.State = StatePartial
	case len(states) > 0:
	case isOnlyNotYet(lacks.NamespacesErr):
		summary.State = StateSyncing
		return summary
	case apierrors.IsForbidden(lacks.NamespacesErr):
		summary.State = StateForbidden
	default:
		summary.State = StateFailing
	}
	summary.LastError = lacks
	return summary
}

// summaryOfAll returns the state of a set of which the informer of all namespaces says how it is.
func (s *namespaceSet) summaryOfAll(now ScopeState, decided bool, lacks *PartialError) ScopeState {
	now.Scope = s.scope
	switch {
	case now.State == StateForbidden && !decided && isOnlyNotYet(lacks.NamespacesErr),
		now.State == StateForbidden && !decided && lacks.NamespacesErr == nil:
		now.State, now.LastError = StateSyncing, nil // it is not known yet where else
	case now.State == StateForbidden && lacks.NamespacesErr != nil:
		now.LastError = errors.WithMessage(now.LastError, lacks.NamespacesErr.Error())
	case now.State == StateForbidden && lacks.LeftOut > 0:
		now.LastError = errors.WithMessage(now.LastError, lacks.Error())
	case now.State == StateSynced && !decided:
		now.State = StateSyncing // it does not feed yet
	}
	return now
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
	} else {
		o.leftLocked(now.Scope.Namespace)
	}
	o.setLocked()
}

// left reports that a namespace is no longer in the set, if its states were reported.
func (o *setObserver) left(namespace string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leftLocked(namespace)
}

func (o *setObserver) leftLocked(namespace string) {
	if _, reported := o.members[namespace]; !reported || o.set.holder.dead.Load() {
		return
	}
	delete(o.members, namespace)
	o.observe(ScopeState{
		GVK:            o.set.kind.gvk,
		Representation: o.set.kind.representation,
		Scope:          o.set.scope.in(namespace),
		State:          StateLeft,
		Since:          time.Now(),
	})
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
	set := o.set.summary((*use).snapshotOfState)
	var partial *PartialError
	begins := set.State == StateSyncing || errors.As(set.LastError, &partial) && partial.begins()
	if before := o.reported; !begins &&
		(before.State != set.State || errorText(before.LastError) != errorText(set.LastError)) {
		o.reported = set
		o.observe(set)
	}
}
