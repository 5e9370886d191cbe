package scopedcache

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/labels"
)

// The state of a set says as much as one state can, and the error the rest.
func TestSummarize(t *testing.T) {
	g := NewWithT(t)
	scope := Scope{Namespaces: InNamespaces("a", "b", "c", "d", "e")}
	members, err := scope.Members()
	g.Expect(err).NotTo(HaveOccurred())
	sum := func(states ...State) (State, string) {
		var all []ScopeState
		for i, state := range states {
			member := ScopeState{Scope: members[i], State: state, Since: time.Unix(int64(i), 0), Objects: 1}
			if state != StateSynced && state != StateSyncing {
				member.LastError = fmt.Errorf("no %s", state)
			}
			all = append(all, member)
		}
		result := Summarize(scope, all)
		g.Expect(result.Objects).To(Equal(len(states)))
		if len(states) > 0 {
			g.Expect(result.Since).To(Equal(time.Unix(int64(len(states)-1), 0)))
		}
		if result.LastError == nil {
			return result.State, ""
		}
		g.Expect(errors.As(result.LastError, new(*PartialError))).To(BeTrue())
		return result.State, result.LastError.Error()
	}
	for _, tc := range []struct {
		states []State
		want   State
		text   string
	}{
		{[]State{StateSynced, StateSynced}, StateSynced, ""},
		{[]State{StateForbidden}, StateForbidden, "0 of 1 namespaces synced, 1 forbidden; a: no Forbidden"},
		{[]State{StateSynced, StateForbidden, StateSyncing}, StatePartial,
			"1 of 3 namespaces synced, 1 forbidden, 1 syncing; b: no Forbidden"},
		{[]State{StateSyncing, StateSyncing}, StateSyncing, ""},
		{nil, StateSynced, ""},
		{[]State{StateLive}, StateLive, "0 of 1 namespaces synced, 1 live; a: no Live"},
		{[]State{StateForbidden, StateSyncing}, StateForbidden,
			"0 of 2 namespaces synced, 1 forbidden, 1 syncing; a: no Forbidden"},
		{[]State{StateForbidden, StateFailing}, StateFailing,
			"0 of 2 namespaces synced, 1 failing, 1 forbidden; a: no Forbidden; b: no Failing"},
		{[]State{StateForbidden, StateNotServed}, StateForbidden,
			"0 of 2 namespaces synced, 1 forbidden, 1 notserved; a: no Forbidden; b: no NotServed"},
		{[]State{StateSynced, StateForbidden, StateForbidden, StateForbidden, StateForbidden}, StatePartial,
			"1 of 5 namespaces synced, 4 forbidden; b: no Forbidden; c: no Forbidden; d: no Forbidden; 1 more"},
	} {
		state, text := sum(tc.states...)
		g.Expect(state).To(Equal(tc.want), "%v", tc.states)
		g.Expect(text).To(Equal(tc.text), "%v", tc.states)
	}
}

// Sets are compared by what they name.
func TestNamespaces(t *testing.T) {
	g := NewWithT(t)
	of := func(names ...string) Scope { return Scope{Namespaces: InNamespaces(names...)} }
	g.Expect(of("b", "a", "b").Equal(of("a", "b"))).To(BeTrue())
	g.Expect(of("a").Equal(of("b"))).To(BeFalse())
	g.Expect(of("a").Equal(Scope{Namespace: "a"})).To(BeFalse())
	g.Expect(of("a").Equal(Scope{})).To(BeFalse())
	g.Expect(of().Equal(Scope{})).To(BeFalse())
	g.Expect(of("b", "a").String()).To(Equal("namespaces a, b"))
	g.Expect(Scope{}.Namespaces.Names()).To(BeNil())

	selector := labels.SelectorFromSet(labels.Set{"x": "y"})
	members, err := Scope{Namespaces: InNamespaces("b", "a"), LabelSelector: selector}.Members()
	g.Expect(err).NotTo(HaveOccurred())
	a, b := Scope{Namespace: "a", LabelSelector: selector}, Scope{Namespace: "b", LabelSelector: selector}
	g.Expect(members).To(Equal([]Scope{a, b}))
	for _, bad := range []Scope{of(), of(""), of("a", ".."), of("a/b"), {Namespace: "a", Namespaces: InNamespaces("a")},
		{LabelSelector: labels.Nothing()}} {
		_, err := bad.Members()
		g.Expect(err).To(HaveOccurred(), "%v", bad)
	}
}
