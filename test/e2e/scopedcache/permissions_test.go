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

	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// TestForbiddenAtStartThenGranted checks that a read without permission returns Forbidden at once.
// The error names the user and the resource, and the cache sends no list request. After the
// permission is granted, reads succeed, and handlers that were added before receive the objects.
func TestForbiddenAtStartThenGranted(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := createNamespace(t), newUser(t)
	create(t, configMap(ns, "a"))
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: shortInterval}, cache.Options{})
	handle, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	recorder := &testutil.Recorder{}
	_, err = handle.AddEventHandler(recorder)
	g.Expect(err).NotTo(HaveOccurred())

	began := time.Now()
	_, err = c.names(ctx, ns)
	t.Logf("The first read returned Forbidden after %s: %v", time.Since(began).Round(time.Millisecond), err)
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
	for _, part := range []string{`User "` + u.name + `"`, "cannot list", `resource "configmaps"`,
		`in the namespace "` + ns + `"`} {
		g.Expect(err).To(MatchError(ContainSubstring(part)))
	}
	g.Expect(c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "a"}, &corev1.ConfigMap{})).
		To(Satisfy(apierrors.IsForbidden))
	g.Expect(c.state(ns)).To(Equal(scopedcache.StateForbidden))
	g.Expect(u.requests.lists("/configmaps")).To(BeZero(), "the cache sends access reviews, and does not try to list")
	g.Expect(handle.HasSynced()).To(BeTrue(), "the state is known, so no caller has to wait")

	u.grant(t, ns, "configmaps", "list", "watch")
	g.Eventually(func() ([]string, error) { return c.names(ctx, ns) }).WithTimeout(patience).Should(Equal([]string{"a"}))
	g.Eventually(recorder.Events).WithTimeout(patience).Should(Equal([]string{"add a"}))
	create(t, configMap(ns, "b"))
	g.Eventually(recorder.Events).WithTimeout(patience).Should(Equal([]string{"add a", "add b"}))
	g.Expect(c.state(ns)).To(Equal(scopedcache.StateSynced))
	handle.Release()
}

// TestRevokedWhileWatchingByInterval revokes a permission while a watch runs. The API server leaves
// the watch open, but the cache notices the revocation by its access reviews. The informer stops,
// the cache drops its objects, and reads return Forbidden.
func TestRevokedWhileWatchingByInterval(t *testing.T) {
	g := NewWithT(t)
	ns, u := createNamespace(t), newUser(t)
	create(t, configMap(ns, "a"))
	grant := u.grant(t, ns, "configmaps", "list", "watch")
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: shortInterval}, cache.Options{})
	g.Expect(c.names(t.Context(), ns)).To(Equal([]string{"a"}))
	grant.revoke(t)
	last := c.readUntilForbidden(t, ns)
	t.Logf("The last stale read was %s after the revocation", last.Round(10*time.Millisecond))
	g.Expect(last).To(BeNumerically("<", 10*time.Second))
	g.Expect(c.States()).
		To(HaveExactElements(And(HaveField("State", scopedcache.StateForbidden), HaveField("Objects", 0))))
}

// TestRevokedWhileWatchingByEvent checks the same without waiting for AccessReviewInterval. The
// cache receives the RBAC event, whatever label selector it uses for other kinds.
func TestRevokedWhileWatchingByEvent(t *testing.T) {
	g := NewWithT(t)
	ns, u := createNamespace(t), newUser(t)
	create(t, colouredConfigMap(ns, "a", "red"))
	grant := u.grant(t, ns, "configmaps", "list", "watch")
	u.grantRule(t, "",
		rbacv1.PolicyRule{
			APIGroups: []string{rbacv1.GroupName},
			Resources: []string{"*"},
			Verbs:     []string{"list", "watch"},
		})
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: endlessInterval, WatchRBAC: true},
		cache.Options{DefaultLabelSelector: labels.SelectorFromSet(labels.Set{"colour": "red"})})
	g.Expect(c.names(t.Context(), ns)).To(Equal([]string{"a"}))
	u.waitUntilIdle(t)
	grant.revoke(t)
	last := c.readUntilForbidden(t, ns)
	t.Logf("The last stale read was %s after the revocation; 5 s are expected", last.Round(10*time.Millisecond))
	g.Expect(last).To(BeNumerically("<", 10*time.Second))

	// The cache notices a grant in the same way.
	u.waitUntilIdle(t)
	grant.restore(t)
	began := time.Now()
	g.Eventually(func() ([]string, error) { return c.names(t.Context(), ns) }).WithTimeout(patience).
		Should(Equal([]string{"a"}))
	t.Logf("The first read was %s after the grant", time.Since(began).Round(10*time.Millisecond))
	g.Expect(time.Since(began)).To(BeNumerically("<", 10*time.Second))
}

// TestEventsOfRBAC checks that the cache notices every way in which RBAC revokes and grants a
// permission. The cache also notices a change that happened while it could not watch RBAC.
func TestEventsOfRBAC(t *testing.T) {
	ctx := context.Background()
	for name, tc := range map[string]struct {
		everywhere      bool
		revoke, restore func(t *testing.T, grant *roleGrant)
	}{
		"RoleBinding": {false, func(t *testing.T, grant *roleGrant) {
			grant.revoke(t)
		}, func(t *testing.T, grant *roleGrant) { grant.restore(t) }},
		"ClusterRoleBinding": {true, func(t *testing.T, grant *roleGrant) {
			grant.revoke(t)
		}, func(t *testing.T, grant *roleGrant) { grant.restore(t) }},
		"Role": {false, func(t *testing.T, grant *roleGrant) {
			grant.setVerbs(t, "get")
		}, func(t *testing.T, grant *roleGrant) { grant.setVerbs(t, "list", "watch") }},
		"ClusterRole": {true, func(t *testing.T, grant *roleGrant) {
			grant.setVerbs(t, "get")
		}, func(t *testing.T, grant *roleGrant) { grant.setVerbs(t, "list", "watch") }},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ns, u := createNamespace(t), newUser(t)
			create(t, configMap(ns, "a"))
			grantNamespace := ns
			if tc.everywhere {
				grantNamespace = ""
			}
			grant := u.grant(t, grantNamespace, "configmaps", "list", "watch")
			u.grantRule(t, "",
				rbacv1.PolicyRule{
					APIGroups: []string{rbacv1.GroupName},
					Resources: []string{"*"},
					Verbs:     []string{"list", "watch"},
				})
			c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: endlessInterval, WatchRBAC: true},
				cache.Options{})
			g.Expect(c.names(ctx, ns)).To(Equal([]string{"a"}))
			tc.revoke(t, grant)
			g.Eventually(func() bool { return c.isForbidden(ctx, ns) }).WithTimeout(patience).Should(BeTrue())
			tc.restore(t, grant)
			g.Eventually(func() ([]string, error) { return c.names(ctx, ns) }).WithTimeout(patience).
				Should(Equal([]string{"a"}))
		})
	}

	t.Run("change while RBAC cannot be watched", func(t *testing.T) {
		g := NewWithT(t)
		ns, u := createNamespace(t), newUser(t)
		create(t, configMap(ns, "a"))
		grant := u.grant(t, ns, "configmaps", "list", "watch")
		watcher := newUser(t)
		watcherGrant := watcher.grantRule(t, "",
			rbacv1.PolicyRule{
				APIGroups: []string{rbacv1.GroupName},
				Resources: []string{"*"},
				Verbs:     []string{"list", "watch"},
			})
		httpClient, err := rest.HTTPClientFor(watcher.config)
		g.Expect(err).NotTo(HaveOccurred())
		idleClosers = append(idleClosers, func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) })
		var synced, forbidden atomic.Int64
		events, err := scopedcache.NewRBACWatcher(watcher.config, cache.Options{HTTPClient: httpClient},
			scopedcache.Options{
				AccessReviewInterval: shortInterval,
				OnStateChange: func(before scopedcache.State, now scopedcache.ScopeState) {
					switch {
					case before == scopedcache.StateSyncing && now.State == scopedcache.StateSynced:
						synced.Add(1)
					case before == scopedcache.StateSynced && now.State == scopedcache.StateForbidden:
						forbidden.Add(1)
					}
				},
			})
		g.Expect(err).NotTo(HaveOccurred())
		watcherCtx, stop := context.WithCancel(ctx)
		ended := runInBackground(func() { _ = events.Start(watcherCtx) })
		defer func() {
			stop()
			<-ended
		}()
		c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: endlessInterval, RBACWatcher: events},
			cache.Options{})
		g.Expect(c.names(ctx, ns)).To(Equal([]string{"a"}))
		g.Eventually(synced.Load).WithTimeout(patience).
			Should(BeEquivalentTo(4), "informers of the four RBAC kinds have synced")
		watcherGrant.revoke(t)
		g.Eventually(forbidden.Load).WithTimeout(patience).Should(BeEquivalentTo(4))
		u.waitUntilIdle(t) // the cache has handled the events that it received before
		grant.revoke(t)
		g.Consistently(func() ([]string, error) { return c.names(ctx, ns) }, 5*time.Second).
			Should(Equal([]string{"a"}), "no RBAC event reaches the cache")
		watcherGrant.restore(t)
		g.Eventually(func() bool { return c.isForbidden(ctx, ns) }).WithTimeout(patience).Should(BeTrue())
	})
}

// TestObjectsOfARevokedScopeAreFreed checks that the cache frees its objects when the permission is
// revoked. The cache keeps only what it needs to notify handlers of deletions.
func TestObjectsOfARevokedScopeAreFreed(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := createNamespace(t), newUser(t)
	create(t, configMap(ns, "a"))
	grant := u.grant(t, ns, "configmaps", "list", "watch")
	cached := make(chan weak.Pointer[corev1.ConfigMap], 10)
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: shortInterval},
		cache.Options{DefaultTransform: func(object any) (any, error) {
			if found, ok := object.(*corev1.ConfigMap); ok {
				cached <- weak.Make(found)
			}
			return object, nil
		}})
	handle, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	defer handle.Release()
	recorder := &testutil.Recorder{}
	_, err = handle.AddEventHandler(recorder)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(recorder.Events).WithTimeout(patience).Should(Equal([]string{"add a"}))
	object := <-cached
	g.Expect(isCollected(object)()).To(BeFalse(), "the informer holds this object")
	grant.revoke(t)
	g.Eventually(func() bool { return c.isForbidden(ctx, ns) }).WithTimeout(patience).Should(BeTrue())
	g.Eventually(isCollected(object)).WithTimeout(patience).Should(BeTrue())
}

// waitUntilIdle waits until the cache of the user has no reason left to send access reviews, except
// later events.
func (u *user) waitUntilIdle(t *testing.T) {
	t.Helper()
	reviews := -1
	NewWithT(t).Eventually(func() bool {
		before := reviews
		reviews = u.requests.reviews()
		return reviews == before
	}).WithTimeout(patience).WithPolling(4 * time.Second).Should(BeTrue())
}

// readUntilForbidden reads in a tight loop until a read returns Forbidden. The result is the time
// from the call to the last successful read. Each read must return either the one object or
// Forbidden.
func (s *runningCache) readUntilForbidden(t *testing.T, namespace string) (last time.Duration) {
	t.Helper()
	began := time.Now()
	for time.Since(began) < patience {
		names, err := s.names(t.Context(), namespace)
		switch {
		case apierrors.IsForbidden(err):
			return last
		case err != nil || len(names) != 1:
			t.Fatalf("read %v, %v", names, err)
		}
		last = time.Since(began)
	}
	t.Fatal("reads never return Forbidden")
	return last
}

// TestGrantedAgain creates and deletes objects while the permission is revoked. After it is granted
// again, handlers receive these creations and deletions, also of an object that was replaced by
// another of the same name. Delete events carry what handlers need to find the owner, and no
// content.
func TestGrantedAgain(t *testing.T) {
	g := NewWithT(t)
	ns, u := createNamespace(t), newUser(t)
	create(t, configMap(ns, "stays"), configMap(ns, "goes"), configMap(ns, "is-another"))
	grant := u.grant(t, ns, "configmaps", "list", "watch")
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: shortInterval}, cache.Options{})
	informer, err := c.Hold(t.Context(), &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	recorder := &testutil.Recorder{}
	_, err = informer.AddEventHandler(recorder)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ConsistOf("add stays", "add goes", "add is-another"))

	grant.revoke(t)
	g.Eventually(func() bool { return c.isForbidden(t.Context(), ns) }).WithTimeout(patience).Should(BeTrue())
	recorder.Reset()
	remove(t, configMap(ns, "goes"), configMap(ns, "is-another"))
	create(t, configMap(ns, "is-another"), configMap(ns, "new"))
	g.Expect(recorder.Events()).To(BeEmpty(), "handlers receive no events without permission to watch")
	grant.restore(t)
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ConsistOf(
		"add stays", "add new", "delete unseen is-another", "add is-another", "delete unseen goes"))
	create(t, configMap(ns, "later"))
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ContainElement("add later"))
	g.Expect(recorder.Events()).
		To(ConsistOf("add stays", "add new", "delete unseen is-another", "add is-another", "delete unseen goes",
			"add later"), "each event once")
	g.Expect(informer.List(t.Context(), &corev1.ConfigMapList{})).To(Succeed())
	informer.Release()
}

// TestNamespacedPermissions checks that a user with permission in one namespace can read there,
// without any configuration. A read of all namespaces returns Forbidden, and never only a part of
// the objects.
func TestNamespacedPermissions(t *testing.T) {
	for name, options := range map[string]scopedcache.Options{
		"one informer per namespace":                {AccessReviewInterval: shortInterval, PerNamespace: true},
		"one informer of all namespaces if allowed": {AccessReviewInterval: shortInterval},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ctx := t.Context()
			mine, yours, u := createNamespace(t), createNamespace(t), newUser(t)
			create(t, configMap(mine, "a"), configMap(yours, "b"))
			u.grant(t, mine, "configmaps", "list", "watch")
			c := u.start(t, options, cache.Options{})
			g.Expect(c.names(ctx, mine)).To(Equal([]string{"a"}))
			g.Expect(c.Get(ctx, client.ObjectKey{Namespace: mine, Name: "a"}, &corev1.ConfigMap{})).To(Succeed())
			_, err := c.names(ctx, yours)
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
			_, err = c.names(ctx, "")
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
			g.Expect(err).To(MatchError(And(ContainSubstring("at the cluster scope"),
				ContainSubstring("see scopedcache.WhereverAllowed"))))
			g.Expect(c.names(ctx, mine)).To(Equal([]string{"a"}), "the forbidden reads do not affect this namespace")

			// With permission in all namespaces, the cache needs no further informers.
			u.grant(t, "", "configmaps", "list", "watch")
			g.Eventually(func() ([]string, error) { return c.names(ctx, "") }).WithTimeout(patience).
				Should(ContainElements("a", "b"))
			third := createNamespace(t)
			create(t, configMap(third, "c"))
			g.Eventually(func() ([]string, error) { return c.names(ctx, third) }).WithTimeout(patience).
				Should(Equal([]string{"c"}))
			g.Expect(u.requests.lists("/namespaces/" + third + "/configmaps")).To(BeZero())
		})
	}
}

// TestListOnlyAndWatchOnly checks that reads fail with only one of the permissions to list and to
// watch. The error names the missing one. The reason is that an informer that may list and not
// watch would never receive a change.
func TestListOnlyAndWatchOnly(t *testing.T) {
	for only, missing := range map[string]string{"list": "watch", "watch": "list"} {
		t.Run(only, func(t *testing.T) {
			g := NewWithT(t)
			ns, u := createNamespace(t), newUser(t)
			create(t, configMap(ns, "a"))
			u.grant(t, ns, "configmaps", only)
			c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: shortInterval}, cache.Options{})
			_, err := c.names(t.Context(), ns)
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
			g.Expect(err).To(MatchError(ContainSubstring("cannot " + missing)))
			g.Expect(u.requests.lists("/configmaps")).To(BeZero())
		})
	}
}

// TestListOnlyAllowed checks PollWithoutWatch. With this option the cache lists every
// AccessReviewInterval, and the permission to list is sufficient.
func TestListOnlyAllowed(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := createNamespace(t), newUser(t)
	create(t, configMap(ns, "a"))
	grant := u.grant(t, ns, "configmaps", "list")
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: shortInterval, PollWithoutWatch: true},
		cache.Options{})
	g.Expect(c.names(ctx, ns)).To(Equal([]string{"a"}))
	create(t, configMap(ns, "b"))
	remove(t, configMap(ns, "a"))
	g.Eventually(func() ([]string, error) { return c.names(ctx, ns) }).WithTimeout(patience).Should(Equal([]string{"b"}))
	g.Expect(c.state(ns)).To(Equal(scopedcache.StateSynced))
	grant.revoke(t)
	g.Eventually(func() bool { return c.isForbidden(ctx, ns) }).WithTimeout(patience).Should(BeTrue())
}

// TestResourceNames checks that permission for one object by its name is sufficient for a scope
// that selects this name.
func TestResourceNames(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := createNamespace(t), newUser(t)
	create(t, configMap(ns, "a"), configMap(ns, "b"))
	u.grantRule(t, ns,
		rbacv1.PolicyRule{
			APIGroups:     []string{""},
			Resources:     []string{"configmaps"},
			ResourceNames: []string{"a"},
			Verbs:         []string{"get", "list", "watch"},
		})
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: shortInterval}, cache.Options{})
	hold := func(name string) *scopedcache.Handle {
		handle, err := c.Hold(ctx, &corev1.ConfigMap{},
			scopedcache.Scope{
				Namespace:     ns,
				FieldSelector: fields.OneTermEqualSelector("metadata.name", name),
			}, scopedcache.HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(handle.Release)
		return handle
	}
	list := &corev1.ConfigMapList{}
	mine := hold("a")
	g.Expect(mine.List(ctx, list)).To(Succeed())
	g.Expect(namesOf(list)).To(Equal([]string{"a"}))
	g.Expect(mine.Get(ctx, client.ObjectKey{Namespace: ns, Name: "b"}, &corev1.ConfigMap{})).
		To(Satisfy(apierrors.IsNotFound), "the scope does not select this object")
	g.Expect(hold("b").List(ctx, list)).To(Satisfy(apierrors.IsForbidden))
	g.Expect(c.isForbidden(ctx, ns)).To(BeTrue(), "reads through the cache use no selectors")
}

// TestUnneededScopesSendNothing checks that the cache sends no more access reviews for a scope
// after its last handle is released.
func TestUnneededScopesSendNothing(t *testing.T) {
	g := NewWithT(t)
	ns, u := createNamespace(t), newUser(t)
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: 50 * time.Millisecond}, cache.Options{})
	handle, err := c.Hold(context.Background(), &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns},
		scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() int { return u.requests.reviews() }).WithTimeout(patience).Should(BeNumerically(">", 4))
	handle.Release()
	reviews := 0
	g.Eventually(func() bool {
		before := reviews
		reviews = u.requests.reviews()
		return reviews == before
	}).WithTimeout(patience).WithPolling(500 * time.Millisecond).Should(BeTrue())
	g.Expect(c.States()).To(BeEmpty())
}
