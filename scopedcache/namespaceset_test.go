package scopedcache

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
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

// Sets leave a NamespaceWatcher that others share, when they are released and when their cache
// ends.
func TestSetsLeaveTheNamespaceWatcher(t *testing.T) {
	g := NewWithT(t)
	config, mapper := &rest.Config{Host: "http://127.0.0.1:1"}, meta.NewDefaultRESTMapper(nil)
	mapper.Add(configMaps, meta.RESTScopeNamespace)
	opts := cache.Options{HTTPClient: &http.Client{}, Mapper: mapper}
	watcher, err := NewNamespaceWatcher(config, opts, Options{})
	g.Expect(err).NotTo(HaveOccurred())
	queries := func() int {
		watcher.view.mu.Lock()
		defer watcher.view.mu.Unlock()
		return len(watcher.view.queries)
	}
	for _, released := range []bool{true, false} {
		c, err := NewWithOptions(Options{NamespaceWatcher: watcher})(config, opts)
		g.Expect(err).NotTo(HaveOccurred())
		var handles []*Handle
		for _, set := range []*Namespaces{InNamespaces("a"), WhereverAllowed(), NamespacesWithLabels(labels.Everything())} {
			handle, err := c.(Cache).Hold(t.Context(), &corev1.ConfigMap{}, Scope{Namespaces: set}, HoldOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			handles = append(handles, handle)
		}
		g.Expect(queries()).To(Equal(3))
		if released {
			for _, handle := range handles {
				handle.Release()
			}
		} else {
			over, cancel := context.WithCancel(t.Context())
			cancel()
			g.Expect(c.Start(over)).To(Succeed())
		}
		g.Expect(queries()).To(BeZero())
	}
}

// What the index of RBAC says of namespaces counts when it has all objects, and not when the
// informers have.
func TestNamespacesOfBindings(t *testing.T) {
	g := NewWithT(t)
	opts := cache.Options{HTTPClient: &http.Client{}, Mapper: meta.NewDefaultRESTMapper(nil)}
	watcher, err := NewRBACWatcher(&rest.Config{Host: "http://127.0.0.1:1"}, opts, Options{})
	g.Expect(err).NotTo(HaveOccurred())
	names := func() error {
		_, err := watcher.namespacesOf(nil, func(err error) error { return err })
		return err
	}
	g.Expect(names()).To(MatchError(errNotYet))
	kinds := []string{"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
	each := func(state State, err error) {
		for _, kind := range kinds {
			gvk := rbacv1.SchemeGroupVersion.WithKind(kind)
			watcher.record(ScopeState{GVK: gvk, State: state, Since: time.Now(), LastError: err})
		}
	}
	each(StateFailing, errors.New("500"))
	g.Expect(names()).To(And(MatchError(errNotYet), MatchError(ContainSubstring("500"))))
	each(StateSynced, nil)
	g.Expect(names()).To(MatchError(errNotYet))
	for _, kind := range kinds {
		watcher.delivered(rbacv1.SchemeGroupVersion.WithKind(kind))
	}
	g.Expect(names()).To(Succeed())
	each(StateFailing, errors.New("500"))
	g.Expect(names()).To(Succeed(), "with what it has")
	each(StateForbidden, errors.New("denied"))
	g.Expect(names()).To(And(Not(MatchError(errNotYet)), MatchError(ContainSubstring("denied"))))
	each(StateSynced, nil)
	g.Expect(names()).To(MatchError(errNotYet), "what came meanwhile is being delivered")
	watcher.close()
}
