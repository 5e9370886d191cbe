package scopedcache

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/rbacindex"
)

// All changes of RBAC are reported while all four kinds are watched. A watch that fails reports
// them later, so it counts until it has failed for as long as a review would take without events.
func TestEventsAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		e := &RBACWatcher{
			index:     rbacindex.New(),
			listeners: map[*rbacListener]struct{}{},
			undecided: map[*rbacListener]struct{}{},
			bySubject: map[rbacindex.Subject]map[*rbacListener]struct{}{},
			changed:   map[rbacindex.Concern]struct{}{},
			kinds:     map[schema.GroupVersionKind]watchedKind{},
			grace:     time.Minute,
		}
		var heard []bool
		e.listen("system:serviceaccount:team:red", nil, func(string) {}, func() { heard = append(heard, e.working.Load()) })
		state := func(kind string, state State) {
			e.record(ScopeState{GVK: rbacv1.SchemeGroupVersion.WithKind(kind), State: state, Since: time.Now()})
		}
		for _, kind := range []string{"Role", "RoleBinding", "ClusterRole"} {
			state(kind, StateSynced)
		}
		state("ClusterRoleBinding", StateFailing)
		g.Expect(e.working.Load()).To(BeFalse(), "failing, and never synced")
		state("ClusterRoleBinding", StateSynced)
		g.Expect(e.working.Load()).To(BeTrue())

		state("Role", StateFailing)
		time.Sleep(59 * time.Second)
		g.Expect(e.working.Load()).To(BeTrue(), "changes come later")
		state("Role", StateSynced)
		time.Sleep(time.Hour)
		g.Expect(e.working.Load()).To(BeTrue())
		state("Role", StateFailing)
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		g.Expect(e.working.Load()).To(BeFalse(), "it fails for too long")
		state("Role", StateSynced)
		g.Expect(e.working.Load()).To(BeTrue())

		state("Role", StateFailing)
		time.Sleep(59 * time.Second)
		state("RoleBinding", StateFailing)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		g.Expect(e.working.Load()).To(BeFalse(), "the first fails for too long")
		state("Role", StateSynced)
		state("RoleBinding", StateSynced)
		g.Expect(e.working.Load()).To(BeTrue())

		state("Role", StateForbidden)
		g.Expect(e.working.Load()).To(BeFalse())
		state("Role", StateFailing)
		g.Expect(e.working.Load()).To(BeFalse(), "it was Forbidden")
		state("Role", StateSynced)
		e.close()
		g.Expect(e.working.Load()).To(BeFalse(), "it has ended")
		g.Expect(heard).To(Equal([]bool{true, false, true, false, true, false, true, false}))
	})
}

// The scopes of a cache learn when events begin to be watched, and when they are not any more.
func TestScopesLearnWhetherEventsAreWatched(t *testing.T) {
	g := NewWithT(t)
	events := &RBACWatcher{
		index:     rbacindex.New(),
		listeners: map[*rbacListener]struct{}{},
		undecided: map[*rbacListener]struct{}{},
		bySubject: map[rbacindex.Subject]map[*rbacListener]struct{}{},
		changed:   map[rbacindex.Concern]struct{}{},
		kinds:     map[schema.GroupVersionKind]watchedKind{},
		grace:     time.Minute,
	}
	c := newAPIServer(t).newCache(t, func(o *Options) {
		o.RBACWatcher, o.Username = events, "system:serviceaccount:team:red"
	}).(*scopedCache)
	kind, err := c.env.kinds.kindOf(configMap())
	g.Expect(err).NotTo(HaveOccurred())
	e := c.entries.newEntry(kind, Scope{}) // this entry does not run
	c.entries.mu.Lock()
	c.entries.entries[e] = struct{}{}
	c.entries.mu.Unlock()
	for _, state := range []State{StateSynced, StateForbidden} {
		for _, name := range []string{"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} {
			events.record(ScopeState{GVK: rbacv1.SchemeGroupVersion.WithKind(name), State: state, Since: time.Now()})
		}
		taken, _ := e.mail.take()
		g.Expect(taken.watched).To(BeTrue())
		g.Expect(c.env.eventsWatched().Watched).To(Equal(state == StateSynced))
		g.Expect(c.env.eventsWatched().Latest).To(BeZero(), "no change so far")
	}
	for _, name := range []string{"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} {
		events.record(ScopeState{GVK: rbacv1.SchemeGroupVersion.WithKind(name), State: StateSynced, Since: time.Now()})
	}
	defer events.close()
	before := time.Now()
	events.set(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "unbound"}})
	g.Expect(c.env.eventsWatched().Latest).To(BeZero(), "it concerns no one")
	events.set(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "binding"},
		RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: "unbound"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "blue"}},
	})
	g.Expect(c.env.eventsWatched().Latest).To(BeTemporally(">=", before), "scopes that start now must know")
	events.record(ScopeState{GVK: rbacv1.SchemeGroupVersion.WithKind("Role"), State: StateForbidden, Since: time.Now()})
	g.Expect(c.env.eventsWatched()).To(BeZero(), "changes do not count while not all are reported")
}
