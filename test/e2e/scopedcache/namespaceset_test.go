package scopedcache_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// observed keeps the states of a set and of its members.
type observed struct {
	mu     sync.Mutex
	states []string
}

// observe records a state. The names of namespaces are replaced, because the API server makes them.
func (o *observed) observe(names *strings.Replacer) func(scopedcache.ScopeState) {
	return func(now scopedcache.ScopeState) {
		o.mu.Lock()
		defer o.mu.Unlock()
		place := "set"
		if now.Scope.Namespaces == nil {
			place = names.Replace(now.Scope.Namespace)
		}
		o.states = append(o.states, place+": "+string(now.State))
	}
}

func (o *observed) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string{}, o.states...)
}

// A set of namespaces is one informer for a handler and for reads. Each namespace is on its own:
// permission that is granted or revoked in one changes nothing in the others, and revoked
// permission deletes nothing. The members are those of plain scopes.
func TestSetOfNamespaces(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	u := newUser(t)
	a, b, c := createNamespace(t), createNamespace(t), createNamespace(t)
	names := strings.NewReplacer(a, "a", b, "b", c, "c")
	create(t, configMap(a, "in-a"), configMap(b, "in-b"), configMap(c, "in-c"))
	u.grant(t, a, "configmaps", "list", "watch")
	inB := u.grant(t, b, "configmaps", "list", "watch")
	cached := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: shortInterval}, cache.Options{})
	plain, err := cached.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: a}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())

	states := &observed{}
	scope := scopedcache.Scope{Namespaces: scopedcache.InNamespaces(c, a, b, a)}
	set, err := cached.Hold(ctx, &corev1.ConfigMap{}, scope, scopedcache.HoldOptions{
		Name:          "set",
		Dependent:     "uid",
		OnStateChange: states.observe(names),
	})
	g.Expect(err).NotTo(HaveOccurred())
	again, err := cached.Hold(ctx, &corev1.ConfigMap{}, scope, scopedcache.HoldOptions{Name: "set", Dependent: "uid"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(BeIdenticalTo(set))
	recorder := &testutil.Recorder{}
	_, err = set.AddEventHandler(recorder)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ConsistOf("add in-a", "add in-b"))
	g.Eventually(func() scopedcache.State { return set.State().State }).WithTimeout(patience).
		Should(Equal(scopedcache.StatePartial))
	g.Eventually(set.HasSynced).WithTimeout(patience).Should(BeTrue())
	g.Expect(set.State().LastError).To(And(MatchError(ContainSubstring("2 of 3 namespaces synced, 1 forbidden; "+c+": ")),
		Satisfy(apierrors.IsForbidden)))
	g.Expect(set.State().Objects).To(Equal(2))
	list := &corev1.ConfigMapList{}
	g.Expect(set.List(ctx, list)).To(MatchError(ContainSubstring("2 of 3 namespaces synced, 1 forbidden; " + c + ": ")))
	g.Expect(set.List(ctx, list, client.InNamespace(b))).To(Succeed())
	g.Expect(namesOf(list)).To(Equal([]string{"in-b"}))
	g.Expect(set.Get(ctx, client.ObjectKey{Namespace: a, Name: "in-a"}, &corev1.ConfigMap{})).To(Succeed())
	g.Expect(set.Get(ctx, client.ObjectKey{Namespace: "other", Name: "in-a"}, &corev1.ConfigMap{})).
		To(MatchError(ContainSubstring("not in \"other\"")))
	g.Expect(u.requests.lists("/namespaces/"+a+"/configmaps")).To(Equal(1), "the plain scope has the same informer")
	g.Expect(u.requests.lists("/namespaces/" + c + "/configmaps")).To(BeZero())

	u.grant(t, c, "configmaps", "list", "watch")
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ConsistOf("add in-a", "add in-b", "add in-c"))
	g.Eventually(func() error { return set.List(ctx, list) }).WithTimeout(patience).Should(Succeed())
	g.Expect(namesOf(list)).To(ConsistOf("in-a", "in-b", "in-c"))
	g.Expect(set.List(ctx, list, client.Limit(2))).To(Succeed())
	g.Expect(list.Items).To(HaveLen(2))
	g.Eventually(func() scopedcache.State { return set.State().State }).WithTimeout(patience).
		Should(Equal(scopedcache.StateSynced))

	inB.revoke(t)
	g.Eventually(func() scopedcache.State { return set.State().State }).WithTimeout(patience).
		Should(Equal(scopedcache.StatePartial))
	create(t, configMap(a, "second"), configMap(b, "unseen"))
	g.Eventually(recorder.Events).WithTimeout(patience).
		Should(ConsistOf("add in-a", "add in-b", "add in-c", "add second"))
	remove(t, configMap(b, "in-b"))
	inB.restore(t)
	g.Eventually(recorder.Events).WithTimeout(patience).
		Should(ConsistOf("add in-a", "add in-b", "add in-c", "add second", "add unseen", "delete unseen in-b"))
	g.Eventually(states.all).WithTimeout(patience).Should(ContainElements("a: Synced", "b: Synced", "c: Forbidden",
		"set: Partial", "c: Synced", "set: Synced", "b: Forbidden"))

	set.Release()
	g.Expect(cached.States()).To(HaveLen(1), "the plain scope goes on")
	g.Expect(set.List(ctx, list, client.InNamespace(b))).To(MatchError(scopedcache.ErrReleased))
	g.Expect(plain.List(ctx, list)).To(Succeed())
	plain.Release()
	g.Expect(cached.States()).To(BeEmpty())
}

// A namespace whose requests hang delays no other one of its set.
func TestHungMemberOfASet(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	hung, fine := createNamespace(t), createNamespace(t)
	create(t, configMap(fine, "fine"), configMap(hung, "hung"))
	for _, ns := range []string{hung, fine} {
		u.grant(t, ns, "configmaps", "list", "watch")
	}
	server := newFaultyServer(t, u)
	server.hangRequests("/namespaces/" + hung + "/configmaps")
	c := u.startWithConfig(t, server.config, scopedcache.Options{PerNamespace: true, ReadTimeout: 500 * time.Millisecond},
		cache.Options{})
	both := scopedcache.Scope{Namespaces: scopedcache.InNamespaces(hung, fine)}
	set, err := c.Hold(t.Context(), &corev1.ConfigMap{}, both, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	recorder := &testutil.Recorder{}
	_, err = set.AddEventHandler(recorder)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(recorder.Events).WithTimeout(patience).Should(Equal([]string{"add fine"}))
	list := &corev1.ConfigMapList{}
	g.Expect(set.List(t.Context(), list, client.InNamespace(fine))).To(Succeed())
	g.Expect(set.List(t.Context(), list)).To(And(Satisfy(apierrors.IsTimeout),
		MatchError(ContainSubstring("1 of 2 namespaces synced, 1 syncing; "+hung+": "))))
	g.Expect(set.State().State).To(Equal(scopedcache.StatePartial))
}
