package scopedcache_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
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

func (o *observed) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.states = nil
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

	g.Expect(states.all()).To(ContainElements("a: Synced", "b: Synced", "c: Forbidden", "set: Partial", "c: Synced",
		"set: Synced"))
	states.forget()
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
	g.Eventually(states.all).WithTimeout(patience).
		Should(ContainElements("b: Forbidden", "set: Partial", "b: Synced", "set: Synced"))

	set.Release()
	g.Expect(cached.States()).To(HaveLen(1), "the plain scope goes on")
	g.Expect(set.List(ctx, list, client.InNamespace(b))).To(MatchError(scopedcache.ErrReleased))
	g.Expect(plain.List(ctx, list)).To(Succeed())
	plain.Release()
	g.Expect(cached.States()).To(BeEmpty())
}

// The holder of a set may release it when it hears of the first member; it then hears of no other.
// A set that only begins to sync is no news.
func TestReleaseOfASet(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	a, b := createNamespace(t), createNamespace(t)
	c := u.start(t, scopedcache.Options{PerNamespace: true}, cache.Options{})
	for _, ns := range []string{a, b} { // Forbidden before the set begins
		plain, err := c.Hold(t.Context(), &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		defer plain.Release()
		g.Eventually(func() scopedcache.State { return c.state(ns) }).WithTimeout(patience).
			Should(Equal(scopedcache.StateForbidden))
	}
	both := scopedcache.Scope{Namespaces: scopedcache.InNamespaces(a, b)}
	options := scopedcache.HoldOptions{Name: "set", Dependent: "uid"}
	states := &observed{}
	options.OnStateChange = func(now scopedcache.ScopeState) {
		states.observe(strings.NewReplacer())(now)
		set, err := c.Hold(context.Background(), &corev1.ConfigMap{}, both, options) // the handle that is being returned
		if err == nil {
			set.Release()
		}
	}
	_, err := c.Hold(t.Context(), &corev1.ConfigMap{}, both, options)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(states.all()).To(HaveLen(1))

	u.grant(t, a, "secrets", "list", "watch")
	u.grant(t, b, "secrets", "list", "watch")
	states.forget()
	options = scopedcache.HoldOptions{OnStateChange: states.observe(strings.NewReplacer(a, "a", b, "b"))}
	set, err := c.Hold(t.Context(), &corev1.Secret{}, both, options)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(states.all).WithTimeout(patience).Should(ContainElement("set: Synced"))
	g.Expect(states.all()).To(ConsistOf("a: Synced", "b: Synced", "set: Synced"))
	set.Release()
}

// A watch with labels of all namespaces that is Forbidden does not stand for one namespace, where
// the identity may read.
func TestReadBesideAForbiddenWatchOfAllNamespaces(t *testing.T) {
	g := NewWithT(t)
	ns, u := createNamespace(t), newUser(t)
	u.grant(t, ns, "configmaps", "list", "watch")
	c := u.start(t, scopedcache.Options{PerNamespace: true}, cache.Options{})
	everywhere, err := c.Hold(t.Context(), &corev1.ConfigMap{},
		scopedcache.Scope{LabelSelector: labels.SelectorFromSet(visible)}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	defer everywhere.Release()
	list := &corev1.ConfigMapList{}
	g.Eventually(func() scopedcache.State { return everywhere.State().State }).WithTimeout(patience).
		Should(Equal(scopedcache.StateForbidden))
	g.Expect(c.List(t.Context(), list, client.InNamespace(ns), client.MatchingLabels(visible))).To(Succeed())
	g.Expect(c.List(t.Context(), list, client.MatchingLabels(visible))).To(Satisfy(apierrors.IsForbidden))
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
	g.Expect(set.HasSynced()).To(BeFalse(), "one is not settled")
}
