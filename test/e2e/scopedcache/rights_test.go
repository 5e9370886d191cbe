package scopedcache_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/testutil"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// Who may not read is told so at once and by name, and nobody lists. Once the right is granted
// everything works, and handlers that were added before are fed.
func TestForbiddenAtStartThenGranted(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := namespace(t), newUser(t)
	create(t, configMap(ns, "a"))
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: often}, cache.Options{})
	held, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	told := &testutil.Recorder{}
	_, err = held.AddEventHandler(told)
	g.Expect(err).NotTo(HaveOccurred())

	begun := time.Now()
	_, err = c.names(ctx, ns)
	t.Logf("The first read was refused after %s: %v", time.Since(begun).Round(time.Millisecond), err)
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
	for _, part := range []string{`User "` + u.name + `"`, "cannot list", `resource "configmaps"`,
		`in the namespace "` + ns + `"`} {
		g.Expect(err).To(MatchError(ContainSubstring(part)))
	}
	g.Expect(c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "a"}, &corev1.ConfigMap{})).
		To(Satisfy(apierrors.IsForbidden))
	g.Expect(c.state(ns)).To(Equal(scopedcache.Forbidden))
	g.Expect(u.sent.of("/configmaps")).To(BeZero(), "permission is asked, not tried")
	g.Expect(held.HasSynced()).To(BeTrue(), "it is settled: nobody need wait")

	u.grant(t, ns, "configmaps", "list", "watch")
	g.Eventually(func() ([]string, error) { return c.names(ctx, ns) }).WithTimeout(patience).Should(Equal([]string{"a"}))
	g.Eventually(told.Events).WithTimeout(patience).Should(Equal([]string{"add a"}))
	create(t, configMap(ns, "b"))
	g.Eventually(told.Events).WithTimeout(patience).Should(Equal([]string{"add a", "add b"}))
	g.Expect(c.state(ns)).To(Equal(scopedcache.Synced))
	held.Release()
}

// A right that is revoked while a watch runs is noticed by asking, although the API server leaves
// the watch open: the informer stops, its objects are dropped, reads are refused.
func TestRevokedWhileWatchingByInterval(t *testing.T) {
	g := NewWithT(t)
	ns, u := namespace(t), newUser(t)
	create(t, configMap(ns, "a"))
	right := u.grant(t, ns, "configmaps", "list", "watch")
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: often}, cache.Options{})
	g.Expect(c.names(t.Context(), ns)).To(Equal([]string{"a"}))
	right.revoke(t)
	last := c.readUntilRefused(t, ns)
	t.Logf("The last stale read was %s after the revocation", last.Round(10*time.Millisecond))
	g.Expect(last).To(BeNumerically("<", 10*time.Second))
	g.Expect(c.States()).To(HaveExactElements(And(HaveField("State", scopedcache.Forbidden), HaveField("Objects", 0))))
}

// The same without waiting for an interval: the cache hears of the change, whatever it selects of
// other kinds.
func TestRevokedWhileWatchingByEvent(t *testing.T) {
	g := NewWithT(t)
	ns, u := namespace(t), newUser(t)
	create(t, coloured(ns, "a", "red"))
	right := u.grant(t, ns, "configmaps", "list", "watch")
	u.grantRule(t, "",
		rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"*"},
			Verbs: []string{"list", "watch"}})
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: never, WatchRBAC: true},
		cache.Options{DefaultLabelSelector: labels.SelectorFromSet(labels.Set{"colour": "red"})})
	g.Expect(c.names(t.Context(), ns)).To(Equal([]string{"a"}))
	u.quiet(t)
	right.revoke(t)
	last := c.readUntilRefused(t, ns)
	t.Logf("The last stale read was %s after the revocation; 5 s are expected", last.Round(10*time.Millisecond))
	g.Expect(last).To(BeNumerically("<", 10*time.Second))

	// And so is what is granted.
	u.quiet(t)
	right.again(t)
	begun := time.Now()
	g.Eventually(func() ([]string, error) { return c.names(t.Context(), ns) }).WithTimeout(patience).
		Should(Equal([]string{"a"}))
	t.Logf("The first read was %s after the grant", time.Since(begun).Round(10*time.Millisecond))
	g.Expect(time.Since(begun)).To(BeNumerically("<", 10*time.Second))
}

// Every way in which RBAC takes and gives a right is noticed, and so is what happened while RBAC
// could not be watched.
func TestEventsOfRBAC(t *testing.T) {
	ctx := context.Background()
	for name, tc := range map[string]struct {
		everywhere bool
		take, give func(t *testing.T, right *grants)
	}{
		"RoleBinding": {false, func(t *testing.T, right *grants) {
			right.revoke(t)
		}, func(t *testing.T, right *grants) { right.again(t) }},
		"ClusterRoleBinding": {true, func(t *testing.T, right *grants) {
			right.revoke(t)
		}, func(t *testing.T, right *grants) { right.again(t) }},
		"Role": {false, func(t *testing.T, right *grants) {
			right.setVerbs(t, "get")
		}, func(t *testing.T, right *grants) { right.setVerbs(t, "list", "watch") }},
		"ClusterRole": {true, func(t *testing.T, right *grants) {
			right.setVerbs(t, "get")
		}, func(t *testing.T, right *grants) { right.setVerbs(t, "list", "watch") }},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ns, u := namespace(t), newUser(t)
			create(t, configMap(ns, "a"))
			where := ns
			if tc.everywhere {
				where = ""
			}
			right := u.grant(t, where, "configmaps", "list", "watch")
			u.grantRule(t, "",
				rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"*"},
					Verbs: []string{"list", "watch"}})
			c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: never, WatchRBAC: true},
				cache.Options{})
			g.Expect(c.names(ctx, ns)).To(Equal([]string{"a"}))
			tc.take(t, right)
			g.Eventually(func() bool { return c.refused(ctx, ns) }).WithTimeout(patience).Should(BeTrue())
			tc.give(t, right)
			g.Eventually(func() ([]string, error) { return c.names(ctx, ns) }).WithTimeout(patience).
				Should(Equal([]string{"a"}))
		})
	}

	t.Run("while it could not be watched", func(t *testing.T) {
		g := NewWithT(t)
		ns, u := namespace(t), newUser(t)
		create(t, configMap(ns, "a"))
		right := u.grant(t, ns, "configmaps", "list", "watch")
		watcher := newUser(t)
		watching := watcher.grantRule(t, "",
			rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"*"},
				Verbs: []string{"list", "watch"}})
		httpClient, err := rest.HTTPClientFor(watcher.config)
		g.Expect(err).NotTo(HaveOccurred())
		closeIdle = append(closeIdle, func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) })
		var begun, lost atomic.Int64
		events, err := scopedcache.NewRBACWatcher(watcher.config, cache.Options{HTTPClient: httpClient},
			scopedcache.Options{AccessReviewInterval: often,
				Observe: func(before scopedcache.State, now scopedcache.ScopeState) {
					switch {
					case before == scopedcache.Syncing && now.State == scopedcache.Synced:
						begun.Add(1)
					case before == scopedcache.Synced && now.State == scopedcache.Forbidden:
						lost.Add(1)
					}
				}})
		g.Expect(err).NotTo(HaveOccurred())
		running, stop := context.WithCancel(ctx)
		ended := ending(func() { _ = events.Start(running) })
		defer func() {
			stop()
			<-ended
		}()
		c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: never, RBACWatcher: events},
			cache.Options{})
		g.Expect(c.names(ctx, ns)).To(Equal([]string{"a"}))
		g.Eventually(begun.Load).WithTimeout(patience).Should(BeEquivalentTo(4), "of four kinds")
		watching.revoke(t)
		g.Eventually(lost.Load).WithTimeout(patience).Should(BeEquivalentTo(4))
		u.quiet(t) // what was heard before that
		right.revoke(t)
		g.Consistently(func() ([]string, error) { return c.names(ctx, ns) }, 5*time.Second).
			Should(Equal([]string{"a"}), "nobody tells")
		watching.again(t)
		g.Eventually(func() bool { return c.refused(ctx, ns) }).WithTimeout(patience).Should(BeTrue())
	})
}

// Nothing is left in memory of what may not be seen any more, but what it takes to tell handlers of
// its deletion.
func TestObjectsOfALostRightAreFree(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := namespace(t), newUser(t)
	create(t, configMap(ns, "a"))
	right := u.grant(t, ns, "configmaps", "list", "watch")
	kept := make(chan weak.Pointer[corev1.ConfigMap], 10)
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: often},
		cache.Options{DefaultTransform: func(object any) (any, error) {
			if found, ok := object.(*corev1.ConfigMap); ok {
				kept <- weak.Make(found)
			}
			return object, nil
		}})
	held, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	defer held.Release()
	told := &testutil.Recorder{}
	_, err = held.AddEventHandler(told)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(told.Events).WithTimeout(patience).Should(Equal([]string{"add a"}))
	object := <-kept
	g.Expect(isFree(object)()).To(BeFalse(), "it is what the informer keeps")
	right.revoke(t)
	g.Eventually(func() bool { return c.refused(ctx, ns) }).WithTimeout(patience).Should(BeTrue())
	g.Eventually(isFree(object)).WithTimeout(patience).Should(BeTrue())
}

// quiet waits until the cache of the user has no reason to ask for rights any more, but for what
// comes.
func (u *user) quiet(t *testing.T) {
	t.Helper()
	asked := -1
	NewWithT(t).Eventually(func() bool {
		before := asked
		asked = u.sent.reviews()
		return asked == before
	}).WithTimeout(patience).WithPolling(4 * time.Second).Should(BeTrue())
}

// readUntilRefused reads in a tight loop until that is forbidden, and returns when the last read
// succeeded. Nothing else than the objects and Forbidden is ever read.
func (s *started) readUntilRefused(t *testing.T, namespace string) (last time.Duration) {
	t.Helper()
	begun := time.Now()
	for time.Since(begun) < patience {
		names, err := s.names(t.Context(), namespace)
		switch {
		case apierrors.IsForbidden(err):
			return last
		case err != nil || len(names) != 1:
			t.Fatalf("read %v, %v", names, err)
		}
		last = time.Since(begun)
	}
	t.Fatal("it is read for ever")
	return last
}

// What was created and deleted while the right was lost handlers are told when it is back, also
// what is another object of the same name. They are told of deletions with what they find the owner
// by, and no content.
func TestGrantedAgain(t *testing.T) {
	g := NewWithT(t)
	ns, u := namespace(t), newUser(t)
	create(t, configMap(ns, "stays"), configMap(ns, "goes"), configMap(ns, "is-another"))
	right := u.grant(t, ns, "configmaps", "list", "watch")
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: often}, cache.Options{})
	informer, err := c.Hold(t.Context(), &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	told := &testutil.Recorder{}
	_, err = informer.AddEventHandler(told)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(told.Events).WithTimeout(patience).Should(ConsistOf("add stays", "add goes", "add is-another"))

	right.revoke(t)
	g.Eventually(func() bool { return c.refused(t.Context(), ns) }).WithTimeout(patience).Should(BeTrue())
	told.Reset()
	remove(t, configMap(ns, "goes"), configMap(ns, "is-another"))
	create(t, configMap(ns, "is-another"), configMap(ns, "new"))
	g.Expect(told.Events()).To(BeEmpty(), "who may not watch hears nothing")
	right.again(t)
	g.Eventually(told.Events).WithTimeout(patience).Should(ConsistOf(
		"add stays", "add new", "delete unseen is-another", "add is-another", "delete unseen goes"))
	create(t, configMap(ns, "later"))
	g.Eventually(told.Events).WithTimeout(patience).Should(ContainElement("add later"))
	g.Expect(told.Events()).
		To(ConsistOf("add stays", "add new", "delete unseen is-another", "add is-another", "delete unseen goes",
			"add later"), "each once")
	g.Expect(informer.List(t.Context(), &corev1.ConfigMapList{})).To(Succeed())
	informer.Release()
}

// Who may read in some namespaces only reads there, without any configuration. Across all
// namespaces it is forbidden, and never a part of the truth.
func TestNamespacedOnlyRights(t *testing.T) {
	for name, options := range map[string]scopedcache.Options{
		"each namespace on its own": {AccessReviewInterval: often, PerNamespace: true},
		"all namespaces if allowed": {AccessReviewInterval: often},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ctx := t.Context()
			mine, yours, u := namespace(t), namespace(t), newUser(t)
			create(t, configMap(mine, "a"), configMap(yours, "b"))
			u.grant(t, mine, "configmaps", "list", "watch")
			c := u.start(t, options, cache.Options{})
			g.Expect(c.names(ctx, mine)).To(Equal([]string{"a"}))
			g.Expect(c.Get(ctx, client.ObjectKey{Namespace: mine, Name: "a"}, &corev1.ConfigMap{})).To(Succeed())
			_, err := c.names(ctx, yours)
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
			_, err = c.names(ctx, "")
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
			g.Expect(err).To(MatchError(ContainSubstring("at the cluster scope")))
			g.Expect(c.names(ctx, mine)).To(Equal([]string{"a"}), "which changes nothing here")

			// With the right to all of them no more informers are needed.
			u.grant(t, "", "configmaps", "list", "watch")
			g.Eventually(func() ([]string, error) { return c.names(ctx, "") }).WithTimeout(patience).
				Should(ContainElements("a", "b"))
			third := namespace(t)
			create(t, configMap(third, "c"))
			g.Eventually(func() ([]string, error) { return c.names(ctx, third) }).WithTimeout(patience).
				Should(Equal([]string{"c"}))
			g.Expect(u.sent.of("/namespaces/" + third + "/configmaps")).To(BeZero())
		})
	}
}

// With half of the rights nothing works, and the error says which half is missing: an informer that
// may list and not watch would never learn of a change.
func TestListOnlyAndWatchOnly(t *testing.T) {
	for only, missing := range map[string]string{"list": "watch", "watch": "list"} {
		t.Run(only, func(t *testing.T) {
			g := NewWithT(t)
			ns, u := namespace(t), newUser(t)
			create(t, configMap(ns, "a"))
			u.grant(t, ns, "configmaps", only)
			c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: often}, cache.Options{})
			_, err := c.names(t.Context(), ns)
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
			g.Expect(err).To(MatchError(ContainSubstring("cannot " + missing)))
			g.Expect(u.sent.of("/configmaps")).To(BeZero())
		})
	}
}

// An author may allow for it: then it is listed every AccessReviewInterval, and the right to list
// counts.
func TestListOnlyAllowed(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := namespace(t), newUser(t)
	create(t, configMap(ns, "a"))
	right := u.grant(t, ns, "configmaps", "list")
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: often, PollWithoutWatch: true},
		cache.Options{})
	g.Expect(c.names(ctx, ns)).To(Equal([]string{"a"}))
	create(t, configMap(ns, "b"))
	remove(t, configMap(ns, "a"))
	g.Eventually(func() ([]string, error) { return c.names(ctx, ns) }).WithTimeout(patience).Should(Equal([]string{"b"}))
	g.Expect(c.state(ns)).To(Equal(scopedcache.Synced))
	right.revoke(t)
	g.Eventually(func() bool { return c.refused(ctx, ns) }).WithTimeout(patience).Should(BeTrue())
}

// A right to one object by its name is one to a scope that selects that name.
func TestResourceNames(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := namespace(t), newUser(t)
	create(t, configMap(ns, "a"), configMap(ns, "b"))
	u.grantRule(t, ns,
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"a"},
			Verbs: []string{"get", "list", "watch"}})
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: often}, cache.Options{})
	hold := func(name string) *scopedcache.Handle {
		held, err := c.Hold(ctx, &corev1.ConfigMap{},
			scopedcache.Scope{
				Namespace: ns, FieldSelector: fields.OneTermEqualSelector("metadata.name", name),
			}, scopedcache.HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(held.Release)
		return held
	}
	list := &corev1.ConfigMapList{}
	mine := hold("a")
	g.Expect(mine.List(ctx, list)).To(Succeed())
	g.Expect(namesOf(list)).To(Equal([]string{"a"}))
	g.Expect(mine.Get(ctx, client.ObjectKey{Namespace: ns, Name: "b"}, &corev1.ConfigMap{})).
		To(Satisfy(apierrors.IsNotFound), "it is not selected")
	g.Expect(hold("b").List(ctx, list)).To(Satisfy(apierrors.IsForbidden))
	g.Expect(c.refused(ctx, ns)).To(BeTrue(), "reads through the cache use no selectors")
}

// A right that nobody needs any more is not asked for any more.
func TestNobodyAsksForWhatNobodyNeeds(t *testing.T) {
	g := NewWithT(t)
	ns, u := namespace(t), newUser(t)
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: 50 * time.Millisecond}, cache.Options{})
	held, err := c.Hold(context.Background(), &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns},
		scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() int { return u.sent.reviews() }).WithTimeout(patience).Should(BeNumerically(">", 4))
	held.Release()
	asked := 0
	g.Eventually(func() bool {
		before := asked
		asked = u.sent.reviews()
		return asked == before
	}).WithTimeout(patience).WithPolling(500 * time.Millisecond).Should(BeTrue())
	g.Expect(c.States()).To(BeEmpty())
}
