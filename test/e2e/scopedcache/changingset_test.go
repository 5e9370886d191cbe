package scopedcache_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// label sets the labels of a namespace.
func label(t testing.TB, namespace string, set labels.Set) {
	t.Helper()
	g := NewWithT(t)
	ns := &corev1.Namespace{}
	g.Expect(admin.Get(context.Background(), client.ObjectKey{Name: namespace}, ns)).To(Succeed())
	before := ns.DeepCopy()
	ns.Labels = set
	g.Expect(admin.Patch(context.Background(), ns, client.MergeFrom(before))).To(Succeed())
}

// deleteNamespace deletes a namespace, whose content the test has deleted, without a controller.
func deleteNamespace(t testing.TB, namespace string) {
	t.Helper()
	NewWithT(t).Expect(finalizeNamespace(namespace)).To(Succeed())
}

func finalizeNamespace(namespace string) error {
	ctx, ns := context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := admin.Delete(ctx, ns); err != nil {
		return err
	}
	if err := admin.Get(ctx, client.ObjectKeyFromObject(ns), ns); err != nil {
		return client.IgnoreNotFound(err)
	}
	ns.Spec.Finalizers = nil
	return admin.SubResource("finalize").Update(ctx, ns)
}

// grantRBAC lets the user watch RBAC.
func (u *user) grantRBAC(t testing.TB) *roleGrant {
	return u.grantRule(t, "", rbacv1.PolicyRule{
		APIGroups: []string{rbacv1.GroupName},
		Resources: []string{"*"},
		Verbs:     []string{"list", "watch"},
	})
}

// elsewhere stands for objects in namespaces that are not a test's own.
const elsewhere = "elsewhere"

// holdSet holds ConfigMaps in a set, with a handler that records the names of objects in these
// namespaces.
func (s *runningCache) holdSet(t testing.TB, namespaces *scopedcache.Namespaces,
	observe func(scopedcache.ScopeState), ours ...string) (*scopedcache.Handle, *testutil.Recorder) {
	t.Helper()
	g := NewWithT(t)
	set, err := s.Hold(context.Background(), &corev1.ConfigMap{}, scopedcache.Scope{Namespaces: namespaces},
		scopedcache.HoldOptions{Name: "set", OnStateChange: observe})
	g.Expect(err).NotTo(HaveOccurred())
	recorder := &testutil.Recorder{Key: func(object client.Object) string {
		if slices.Contains(ours, object.GetNamespace()) {
			return object.GetName()
		}
		return elsewhere
	}}
	_, err = set.AddEventHandler(recorder)
	g.Expect(err).NotTo(HaveOccurred())
	return set, recorder
}

// members returns the namespaces of a set and their states.
func members(set *scopedcache.Handle) (states []string) {
	for _, member := range set.Members() {
		states = append(states, member.Scope.Namespace+": "+string(member.State))
	}
	return states
}

// A namespace enters and leaves a set by its labels. Handlers receive deletions for one that
// leaves, and for none because of permission.
func TestNamespacesWithLabels(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	u := newUser(t)
	a, b, c := createNamespace(t), createNamespace(t), createNamespace(t)
	mark := labels.Set{"set": a} // of this test alone
	names := strings.NewReplacer(a, "a", b, "b", c, "c")
	create(t, configMap(a, "in-a"), configMap(b, "in-b"), configMap(c, "in-c"))
	for _, ns := range []string{a, b} {
		u.grant(t, ns, "configmaps", "list", "watch")
	}
	cached := u.start(t, scopedcache.Options{AccessReviewInterval: shortInterval}, cache.Options{})
	states := &observed{}
	definition := scopedcache.NamespacesWithLabels(labels.SelectorFromSet(mark))
	set, recorder := cached.holdSet(t, definition, states.observe(names), a, b, c)
	list := &corev1.ConfigMapList{}

	g.Eventually(states.all).WithTimeout(patience).Should(Equal([]string{"set: Forbidden"}))
	g.Expect(set.List(ctx, list)).To(And(Satisfy(apierrors.IsForbidden),
		MatchError(ContainSubstring("which namespaces are in the set is not known now: listing namespaces: "))))
	namespaces := u.grant(t, "", "namespaces", "list", "watch")
	g.Eventually(func() scopedcache.State { return set.State().State }).WithTimeout(patience).
		Should(Equal(scopedcache.StateSynced), "an empty set")
	g.Eventually(set.HasSynced).WithTimeout(patience).Should(BeTrue())
	g.Expect(set.List(ctx, list)).To(Succeed())
	g.Expect(namesOf(list)).To(BeEmpty())
	g.Expect(set.Get(ctx, client.ObjectKey{Namespace: a, Name: "in-a"}, &corev1.ConfigMap{})).
		To(Satisfy(apierrors.IsNotFound))

	label(t, a, mark)
	label(t, c, mark)
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ConsistOf("add in-a"))
	g.Eventually(func() []string { return members(set) }).WithTimeout(patience).
		Should(ConsistOf(a+": Synced", c+": Forbidden"))
	g.Expect(set.List(ctx, list)).To(MatchError(ContainSubstring("1 of 2 namespaces synced, 1 forbidden; " + c)))
	label(t, b, mark)
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ConsistOf("add in-a", "add in-b"))
	label(t, c, nil)
	g.Eventually(func() error { return set.List(ctx, list) }).WithTimeout(patience).Should(Succeed())
	g.Expect(namesOf(list)).To(ConsistOf("in-a", "in-b"))
	g.Eventually(states.all).WithTimeout(patience).Should(ContainElement("c: Left"))

	namespaces.revoke(t) // changes nothing, but that it is no longer known
	g.Eventually(func() string { return fmt.Sprint(set.State().LastError) }).WithTimeout(patience).
		Should(ContainSubstring("not known now"))
	g.Expect(set.State().State).To(Equal(scopedcache.StatePartial))
	g.Expect(set.List(ctx, list, client.InNamespace(b))).To(Succeed())
	g.Expect(set.List(ctx, list)).To(MatchError(ContainSubstring("not known now")))
	g.Expect(set.Get(ctx, client.ObjectKey{Namespace: c, Name: "in-c"}, &corev1.ConfigMap{})).
		To(MatchError(ContainSubstring("not known now")), "it may be in the set")
	label(t, a, nil)
	create(t, configMap(b, "second"))
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ConsistOf("add in-a", "add in-b", "add second"))
	namespaces.restore(t)
	g.Eventually(recorder.Events).WithTimeout(patience).
		Should(ConsistOf("add in-a", "add in-b", "add second", "delete unseen in-a"))
	g.Expect(set.State().State).To(Equal(scopedcache.StateSynced))
	g.Expect(cached.state(a)).To(BeEmpty(), "nothing needs the informer of the namespace")

	label(t, a, mark) // empties and fills
	label(t, b, nil)
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ConsistOf("add in-a", "add in-b", "add second",
		"delete unseen in-a", "add in-a", "delete unseen in-b", "delete unseen second"))
	set.Release()
	g.Expect(cached.States()).To(BeEmpty())
}

// The set has the namespaces in which the identity may list and watch, and follows as permission is
// granted and revoked. Revoked permission deletes nothing.
func TestWhereverAllowed(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	u := newUser(t)
	a, b, c := createNamespace(t), createNamespace(t), createNamespace(t)
	names := strings.NewReplacer(a, "a", b, "b", c, "c")
	create(t, configMap(a, "in-a"), configMap(b, "in-b"), configMap(c, "in-c"))
	u.grantRBAC(t)
	u.grant(t, a, "configmaps", "list", "watch")
	inB := u.grant(t, b, "configmaps", "list", "watch")
	u.grant(t, c, "secrets", "list", "watch") // a binding that does not matter
	cached := u.start(t, scopedcache.Options{WatchRBAC: true, AccessReviewInterval: shortInterval}, cache.Options{})
	states := &observed{}
	set, recorder := cached.holdSet(t, scopedcache.WhereverAllowed(), states.observe(names), a, b, c)
	list := &corev1.ConfigMapList{}
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ConsistOf("add in-a", "add in-b"))
	g.Eventually(func() []string { return members(set) }).WithTimeout(patience).
		Should(ConsistOf(a+": Synced", b+": Synced"))
	g.Eventually(set.HasSynced).WithTimeout(patience).Should(BeTrue())
	g.Eventually(func() scopedcache.State { return set.State().State }).WithTimeout(patience).
		Should(Equal(scopedcache.StateSynced))
	g.Expect(set.List(ctx, list)).To(Succeed())
	g.Expect(namesOf(list)).To(ConsistOf("in-a", "in-b"))
	g.Expect(set.Get(ctx, client.ObjectKey{Namespace: c, Name: "in-c"}, &corev1.ConfigMap{})).
		To(Satisfy(apierrors.IsForbidden))
	g.Expect(cached.States()).To(HaveLen(2), "what is only tried is not reported")
	g.Expect(states.all()).NotTo(ContainElement(ContainSubstring("Forbidden")))

	inB.revoke(t)
	g.Eventually(func() []string { return members(set) }).WithTimeout(patience).
		Should(ConsistOf(a+": Synced", b+": Forbidden"))
	g.Expect(set.State().LastError).To(MatchError(ContainSubstring("1 of 2 namespaces synced, 1 forbidden; " + b)))
	g.Expect(cached.state(b)).To(Equal(scopedcache.StateForbidden), "it was allowed")
	g.Expect(cached.state("")).To(BeEmpty(), "it is only tried")
	plain, err := cached.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cached.state("")).To(Equal(scopedcache.StateForbidden), "another holder needs it")
	plain.Release()
	remove(t, configMap(b, "in-b"))
	create(t, configMap(a, "second"))
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ConsistOf("add in-a", "add in-b", "add second"))
	inB.restore(t)
	g.Eventually(recorder.Events).WithTimeout(patience).
		Should(ConsistOf("add in-a", "add in-b", "add second", "delete unseen in-b"))

	everywhere := u.grant(t, "", "configmaps", "list", "watch")
	g.Eventually(func() []string { return members(set) }).WithTimeout(patience).Should(ConsistOf(": Synced"))
	heard := func() []string { // not of the namespaces of other tests
		return slices.DeleteFunc(recorder.Events(), func(event string) bool { return strings.HasSuffix(event, elsewhere) })
	}
	g.Eventually(heard).WithTimeout(patience).Should(ConsistOf("add in-a", "add in-b", "add second",
		"delete unseen in-b", "add in-c"), "no event comes twice")
	g.Expect(set.List(ctx, list)).To(Succeed())
	g.Expect(namesOf(list)).To(ContainElements("in-a", "second", "in-c"))
	g.Expect(cached.States()).To(HaveLen(1), "one informer for all namespaces")

	everywhere.revoke(t)
	g.Eventually(func() []string { return members(set) }).WithTimeout(patience).
		Should(ConsistOf(a+": Synced", b+": Synced"))
	create(t, configMap(b, "third"))
	remove(t, configMap(a, "second"))
	g.Eventually(heard).WithTimeout(patience).Should(ConsistOf("add in-a", "add in-b", "add second",
		"delete unseen in-b", "add in-c", "add third", "delete second"))
	set.Release()
	g.Expect(cached.States()).To(BeEmpty())
}

// Without RBACWatcher the state says what to use instead.
func TestWhereverAllowedNeedsRBAC(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	cached := u.start(t, scopedcache.Options{AccessReviewInterval: shortInterval}, cache.Options{})
	ns := createNamespace(t)
	set, recorder := cached.holdSet(t, scopedcache.WhereverAllowed(), nil, ns)
	g.Eventually(func() scopedcache.State { return set.State().State }).WithTimeout(patience).
		Should(Equal(scopedcache.StateForbidden))
	says := And(Satisfy(apierrors.IsForbidden), MatchError(And(ContainSubstring("WatchRBAC"),
		ContainSubstring("InNamespaces"), ContainSubstring("NamespacesWithLabels"))))
	g.Expect(set.State().LastError).To(says)
	g.Expect(set.List(t.Context(), &corev1.ConfigMapList{})).To(says)
	g.Eventually(set.HasSynced).WithTimeout(patience).Should(BeTrue())
	g.Expect(cached.state("")).To(Equal(scopedcache.StateForbidden), "nothing else shows it")
	create(t, configMap(ns, "of-all"))
	u.grant(t, "", "configmaps", "list", "watch")
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ContainElement("add of-all"))
}

// A set where RBAC cannot be watched says so.
func TestWhereverAllowedWithoutPermissionToWatchRBAC(t *testing.T) {
	g := NewWithT(t)
	u, ns := newUser(t), createNamespace(t)
	u.grant(t, ns, "configmaps", "list", "watch")
	create(t, configMap(ns, "here"))
	cached := u.start(t, scopedcache.Options{WatchRBAC: true, AccessReviewInterval: shortInterval}, cache.Options{})
	set, recorder := cached.holdSet(t, scopedcache.WhereverAllowed(), nil, ns)
	g.Eventually(func() string { return fmt.Sprint(set.State().LastError) }).WithTimeout(patience).
		Should(ContainSubstring("the RBACWatcher cannot watch RBAC"))
	g.Expect(set.List(t.Context(), &corev1.ConfigMapList{})).To(Satisfy(apierrors.IsForbidden))
	u.grantRBAC(t)
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ConsistOf("add here"))
}

// A namespace that is deleted leaves with its objects, although its RoleBinding went before them.
func TestNamespaceOfASetIsDeleted(t *testing.T) {
	g := NewWithT(t)
	u, host := newUser(t), newUser(t)
	u.grantRBAC(t)
	host.grant(t, "", "namespaces", "list", "watch")
	httpClient, err := rest.HTTPClientFor(host.config)
	g.Expect(err).NotTo(HaveOccurred())
	idleClosers = append(idleClosers, func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) })
	watcher, err := scopedcache.NewNamespaceWatcher(host.config, cache.Options{HTTPClient: httpClient},
		scopedcache.Options{AccessReviewInterval: shortInterval})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- watcher.Start(ctx) }()
	defer func() { // before the cache looks for goroutines
		cancel()
		g.Expect(<-ended).To(Succeed())
	}()
	stays, goes := createNamespace(t), createNamespace(t)
	mark := labels.Set{"set": stays}
	label(t, goes, mark)
	create(t, configMap(goes, "gone"), configMap(stays, "stays"))
	u.grant(t, stays, "configmaps", "list", "watch")
	inGoes := u.grant(t, goes, "configmaps", "list", "watch")
	cached := u.start(t, scopedcache.Options{
		WatchRBAC:            true,
		NamespaceWatcher:     watcher,
		AccessReviewInterval: shortInterval,
	}, cache.Options{})
	g.Expect(host.requests.lists("/namespaces")).To(BeZero(), "nothing needs them yet")
	listed, inListed := cached.holdSet(t, scopedcache.InNamespaces(stays, goes), nil, stays, goes)
	labelled, inLabelled := cached.holdSet(t, scopedcache.NamespacesWithLabels(labels.SelectorFromSet(mark)), nil,
		goes)
	allowed, inAllowed := cached.holdSet(t, scopedcache.WhereverAllowed(), nil, stays, goes)
	g.Eventually(inListed.Events).WithTimeout(patience).Should(ConsistOf("add gone", "add stays"))
	g.Eventually(inLabelled.Events).WithTimeout(patience).Should(ConsistOf("add gone"))
	g.Eventually(inAllowed.Events).WithTimeout(patience).Should(ConsistOf("add gone", "add stays"))
	inGoes.revoke(t)
	g.Eventually(func() scopedcache.State { return cached.state(goes) }).WithTimeout(patience).
		Should(Equal(scopedcache.StateForbidden))
	remove(t, configMap(goes, "gone"))
	g.Consistently(inAllowed.Events, "300ms").Should(HaveLen(2), "permission deletes nothing")

	deleteNamespace(t, goes)
	g.Eventually(inListed.Events).WithTimeout(patience).Should(ConsistOf("add gone", "add stays", "delete unseen gone"))
	g.Eventually(inLabelled.Events).WithTimeout(patience).Should(ConsistOf("add gone", "delete unseen gone"))
	g.Eventually(inAllowed.Events).WithTimeout(patience).Should(ConsistOf("add gone", "add stays", "delete unseen gone"))
	g.Eventually(func() []string { return members(listed) }).WithTimeout(patience).
		Should(ConsistOf(stays+": Synced", goes+": Forbidden"))
	g.Expect(members(labelled)).To(BeEmpty())
	g.Expect(members(allowed)).To(ConsistOf(stays + ": Synced"))
	g.Expect(host.requests.lists("/namespaces")).To(Equal(1), "one informer for all sets")

	// Recreated under the same name, it begins anew.
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: goes, Labels: mark}})
	u.grant(t, goes, "configmaps", "list", "watch")
	create(t, configMap(goes, "anew"))
	for _, recorder := range []*testutil.Recorder{inListed, inLabelled, inAllowed} {
		g.Eventually(recorder.Events).WithTimeout(patience).Should(ContainElement("add anew"))
	}
}

// Permission through a group counts. At most MaxNamespaces are watched, and the state says how many
// are left out.
func TestWhereverAllowedByGroup(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	u.grantRBAC(t)
	a, b, c := createNamespace(t), createNamespace(t), createNamespace(t)
	u.config = rest.CopyConfig(env.Config())
	group := "team-" + u.name
	u.config.Impersonate = rest.ImpersonationConfig{UserName: u.name, Groups: []string{group}}
	u.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &countingTransport{next: next, requests: u.requests}
	})
	for _, ns := range []string{a, b, c} {
		create(t, configMap(ns, "in-"+ns),
			&rbacv1.Role{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: group},
				Rules: []rbacv1.PolicyRule{{
					APIGroups: []string{""},
					Resources: []string{"configmaps"},
					Verbs:     []string{"list", "watch"},
				}},
			},
			&rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: group},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: group},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: group}},
			})
	}
	cached := u.start(t, scopedcache.Options{WatchRBAC: true, MaxNamespaces: 2, AccessReviewInterval: shortInterval},
		cache.Options{})
	set, recorder := cached.holdSet(t, scopedcache.WhereverAllowed(), nil, a, b, c)
	g.Eventually(recorder.Events).WithTimeout(patience).Should(HaveLen(2))
	g.Eventually(func() scopedcache.State { return set.State().State }).WithTimeout(patience).
		Should(Equal(scopedcache.StatePartial))
	says := MatchError(ContainSubstring("2 of 2 namespaces synced, 1 left out by MaxNamespaces"))
	g.Eventually(func() error { return set.State().LastError }).WithTimeout(patience).Should(says)
	g.Expect(set.List(t.Context(), &corev1.ConfigMapList{})).To(says)

	// One that lost its binding makes room.
	gone := strings.TrimPrefix(recorder.Events()[0], "add in-")
	remove(t, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: gone, Name: group}})
	g.Eventually(recorder.Events).WithTimeout(patience).Should(HaveLen(3))
	g.Eventually(func() error { return set.State().LastError }).WithTimeout(patience).
		Should(MatchError("2 of 2 namespaces synced, what handlers know of 1 more without permission is kept"))
	g.Expect(set.List(t.Context(), &corev1.ConfigMapList{})).To(Succeed())
	g.Expect(recorder.Events()).To(ConsistOf("add in-"+a, "add in-"+b, "add in-"+c))
}

// Among a thousand namespaces, WhereverAllowed asks only where a RoleBinding is, and a set of
// labels may have all.
func TestThousandNamespaces(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	u.grantRBAC(t)
	const count = 1000
	mark := labels.Set{"set": u.name}
	all := make([]string, count)
	var group errgroup.Group
	group.SetLimit(8)
	t.Cleanup(func() { // before the next test
		for _, ns := range all {
			group.Go(func() error { return finalizeNamespace(ns) })
		}
		g.Expect(group.Wait()).To(Succeed())
	})
	for i := range all {
		group.Go(func() error {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "many-", Labels: mark}}
			err := admin.Create(context.Background(), ns)
			all[i] = ns.Name
			return err
		})
	}
	g.Expect(group.Wait()).To(Succeed())
	for _, ns := range all[:3] {
		u.grant(t, ns, "configmaps", "list", "watch")
		create(t, configMap(ns, ns))
	}
	u.grant(t, all[3], "secrets", "list", "watch")
	cached := u.start(t, scopedcache.Options{
		WatchRBAC:            true,
		PerNamespace:         true,
		AccessReviewInterval: endlessInterval,
	}, cache.Options{})
	set, recorder := cached.holdSet(t, scopedcache.WhereverAllowed(), nil, all...)
	g.Eventually(recorder.Events).WithTimeout(patience).
		Should(ConsistOf("add "+all[0], "add "+all[1], "add "+all[2]))
	g.Eventually(set.HasSynced).WithTimeout(patience).Should(BeTrue())
	g.Expect(set.Members()).To(HaveLen(3))
	g.Expect(u.requests.lists("/configmaps")).To(Equal(3), "requests that list or begin a watch")
	t.Logf("%d reviews for a set of %d namespaces with permission and one without, among %d", u.requests.reviews(), 3,
		count)
	const forRBAC, all2, candidates = 2 * 4, 2, 2 * 4
	g.Expect(u.requests.reviews()).To(BeNumerically("<=", forRBAC+3*(all2+candidates)),
		"each once and, after the change of RBAC that they begin with, twice more")

	u.grant(t, "", "namespaces", "list", "watch")
	u.grant(t, "", "secrets", "list", "watch")
	began := time.Now()
	many, err := cached.Hold(t.Context(), &corev1.Secret{},
		scopedcache.Scope{Namespaces: scopedcache.NamespacesWithLabels(labels.SelectorFromSet(mark))},
		scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	events := &testutil.Recorder{}
	registration, err := many.AddEventHandler(events)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(registration.HasSynced).WithTimeout(patience).Should(BeTrue())
	t.Logf("%d namespaces synced after %s", count, time.Since(began).Round(time.Millisecond))
	g.Expect(many.Members()).To(HaveLen(count))
	g.Expect(many.State().State).To(Equal(scopedcache.StateSynced))
	for _, ns := range []string{all[0], all[count-1]} {
		create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: ns}})
	}
	g.Eventually(events.Events).WithTimeout(patience).Should(ConsistOf("add "+all[0], "add "+all[count-1]))
	label(t, all[count-1], nil)
	g.Eventually(events.Events).WithTimeout(patience).
		Should(ConsistOf("add "+all[0], "add "+all[count-1], "delete unseen "+all[count-1]))
	many.Release()
	g.Expect(cached.States()).To(HaveLen(3))
}

// One informer takes over from many, and many from one, while objects change and watches lag. No
// event comes twice, and none is lost.
func TestHandOverWhileObjectsChange(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	u.grantRBAC(t)
	a, b := createNamespace(t), createNamespace(t)
	for _, ns := range []string{a, b} {
		u.grant(t, ns, "configmaps", "list", "watch")
	}
	server := newFaultyServer(t, u)
	server.allDelay.Store(int64(100 * time.Millisecond)) // it is behind the others
	cached := u.startWithConfig(t, server.config, scopedcache.Options{
		WatchRBAC:            true,
		AccessReviewInterval: shortInterval,
	}, cache.Options{})
	set, err := cached.Hold(t.Context(), &corev1.ConfigMap{}, scopedcache.Scope{Namespaces: scopedcache.WhereverAllowed()},
		scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	events := newLedger()
	events.changesAsAdds = true
	_, err = set.AddEventHandler(events)
	g.Expect(err).NotTo(HaveOccurred())
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- changeObjects(stop, a, b) }()
	everywhere := u.grant(t, "", "configmaps", "list", "watch")
	for range 2 {
		g.Eventually(func() []string { return members(set) }).WithTimeout(patience).Should(ConsistOf(": Synced"))
		everywhere.revoke(t)
		g.Eventually(func() []string { return members(set) }).WithTimeout(patience).
			Should(ConsistOf(a+": Synced", b+": Synced"))
		everywhere.restore(t)
	}
	g.Eventually(func() []string { return members(set) }).WithTimeout(patience).Should(ConsistOf(": Synced"))
	close(stop)
	g.Expect(<-ended).To(Succeed())
	for _, ns := range []string{a, b} {
		g.Eventually(func() (map[types.UID]string, error) { return events.versionsIn(ns), nil }).WithTimeout(patience).
			Should(Equal(versionsAt(t, ns)))
	}
	g.Expect(events.violations()).To(BeEmpty())
	t.Logf("%d events", events.eventCount())
}

// versionsAt returns the versions of the ConfigMaps that the API server has in a namespace.
func versionsAt(t *testing.T, namespace string) map[types.UID]string {
	t.Helper()
	list := &corev1.ConfigMapList{}
	NewWithT(t).Expect(admin.List(t.Context(), list, client.InNamespace(namespace))).To(Succeed())
	return versionsOf(list)
}

// changeObjects creates, changes and deletes ConfigMaps until stop is closed.
func changeObjects(stop <-chan struct{}, namespaces ...string) error {
	ctx := context.Background()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		case <-time.After(5 * time.Millisecond):
		}
		object := configMap(namespaces[i%len(namespaces)], fmt.Sprint("o-", i%14/2))
		object.Data = map[string]string{"n": fmt.Sprint(i)}
		var err error
		switch i / 14 % 4 {
		case 0:
			err = admin.Create(ctx, object)
		case 3:
			err = admin.Delete(ctx, object)
		default:
			err = admin.Update(ctx, object)
		}
		if err != nil {
			return err
		}
	}
}

// While one informer of all namespaces has only begun, no read takes its lack of objects for an
// answer.
func TestReadWhileAllNamespacesHang(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	u.grantRBAC(t)
	server := newFaultyServer(t, u)
	server.hangRequests("/v1/configmaps")
	cached := u.startWithConfig(t, server.config, scopedcache.Options{
		WatchRBAC:            true,
		AccessReviewInterval: shortInterval,
		ReadTimeout:          300 * time.Millisecond,
	}, cache.Options{})
	set, _ := cached.holdSet(t, scopedcache.WhereverAllowed(), nil)
	list := &corev1.ConfigMapList{}
	g.Eventually(func() error { return set.List(t.Context(), list) }).WithTimeout(patience).
		Should(Satisfy(apierrors.IsForbidden))
	u.grant(t, "", "configmaps", "list", "watch")
	g.Eventually(func() error { return set.List(t.Context(), list) }).WithTimeout(patience).
		Should(Satisfy(apierrors.IsTimeout))
	for range 20 {
		g.Expect(set.List(t.Context(), list)).NotTo(Succeed())
	}
}

// While the informer of all namespaces hangs, each namespace serves reads and feeds handlers.
func TestMembersServeWhileAllNamespacesHang(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	u.grantRBAC(t)
	ns := createNamespace(t)
	u.grant(t, ns, "configmaps", "list", "watch")
	create(t, configMap(ns, "before"))
	server := newFaultyServer(t, u)
	server.hangRequests("/v1/configmaps")
	cached := u.startWithConfig(t, server.config, scopedcache.Options{
		WatchRBAC:            true,
		AccessReviewInterval: shortInterval,
		ReadTimeout:          time.Second,
	}, cache.Options{})
	set, events := cached.holdSet(t, scopedcache.WhereverAllowed(), nil, ns)
	g.Eventually(func() []string { return members(set) }).WithTimeout(patience).Should(ConsistOf(ns + ": Synced"))
	u.grant(t, "", "configmaps", "list", "watch")
	g.Eventually(server.hanging).WithTimeout(patience).ShouldNot(BeZero())
	create(t, configMap(ns, "meanwhile"))
	g.Eventually(events.Events).WithTimeout(patience).Should(ConsistOf("add before", "add meanwhile"))
	list := &corev1.ConfigMapList{}
	g.Expect(set.List(t.Context(), list)).To(Succeed())
	g.Expect(namesOf(list)).To(ConsistOf("before", "meanwhile"))
	g.Expect(set.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "meanwhile"}, &corev1.ConfigMap{})).To(Succeed())
	g.Expect(members(set)).To(ConsistOf(ns + ": Synced"))
}

// A read that waits for a namespace does not fail because that leaves the set.
func TestNamespaceLeavesWhileARead(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	hangs, answers := createNamespace(t), createNamespace(t)
	mark := labels.Set{"set": hangs}
	label(t, hangs, mark)
	label(t, answers, mark)
	create(t, configMap(answers, "here"))
	u.grant(t, "", "namespaces", "list", "watch")
	for _, ns := range []string{hangs, answers} {
		u.grant(t, ns, "configmaps", "list", "watch")
	}
	server := newFaultyServer(t, u)
	server.hangRequests("/namespaces/" + hangs + "/configmaps")
	cached := u.startWithConfig(t, server.config, scopedcache.Options{}, cache.Options{})
	set, _ := cached.holdSet(t, scopedcache.NamespacesWithLabels(labels.SelectorFromSet(mark)), nil)
	g.Eventually(func() []string { return members(set) }).WithTimeout(patience).
		Should(ConsistOf(hangs+": Syncing", answers+": Synced"))
	list, read := &corev1.ConfigMapList{}, make(chan error, 1)
	go func() { read <- set.List(context.Background(), list) }()
	label(t, hangs, nil)
	g.Eventually(read).WithTimeout(patience).Should(Receive(Succeed()))
	g.Expect(namesOf(list)).To(Equal([]string{"here"}))
}

// A namespace that comes back before its deletions were delivered is not deleted after that.
func TestNamespaceComesBackWhileAHandlerHangs(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	ns := createNamespace(t)
	mark := labels.Set{"set": ns}
	label(t, ns, mark)
	create(t, configMap(ns, "a"), configMap(ns, "b"))
	u.grant(t, "", "namespaces", "list", "watch")
	u.grant(t, ns, "configmaps", "list", "watch")
	cached := u.start(t, scopedcache.Options{}, cache.Options{})
	set, err := cached.Hold(t.Context(), &corev1.ConfigMap{},
		scopedcache.Scope{Namespaces: scopedcache.NamespacesWithLabels(labels.SelectorFromSet(mark))},
		scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	handler := &slowHandler{continues: make(chan struct{}, 100)}
	handler.continues <- struct{}{}
	handler.continues <- struct{}{} // for both adds
	_, err = set.AddEventHandler(handler)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(handler.objects).WithTimeout(patience).Should(ConsistOf("a", "b"))
	label(t, ns, nil)
	g.Eventually(handler.hanging.Load).WithTimeout(patience).Should(BeEquivalentTo(1), "at the first deletion")
	g.Expect(members(set)).To(BeEmpty())
	label(t, ns, mark)
	g.Eventually(func() []string { return members(set) }).WithTimeout(patience).Should(ConsistOf(ns + ": Synced"))
	close(handler.continues)
	g.Eventually(handler.objects).WithTimeout(patience).Should(ConsistOf("a", "b"))
	create(t, configMap(ns, "c")) // what comes after this is not before it
	g.Eventually(handler.objects).WithTimeout(patience).Should(ConsistOf("a", "b", "c"))
	g.Expect(handler.together.Load()).To(BeFalse(), "one call at a time")
}

// slowHandler waits in each call. It knows which objects there are.
type slowHandler struct {
	continues chan struct{}
	hanging   atomic.Int64
	together  atomic.Bool // two calls were in progress

	mu    sync.Mutex
	known map[string]bool // guarded by mu
}

func (s *slowHandler) note(object any, exists bool) {
	if s.hanging.Add(1) > 1 {
		s.together.Store(true)
	}
	<-s.continues
	s.hanging.Add(-1)
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = map[string]bool{}
	}
	if name := object.(client.Object).GetName(); exists {
		s.known[name] = true
	} else {
		delete(s.known, name)
	}
}

func (s *slowHandler) objects() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.known))
}

func (s *slowHandler) OnAdd(object any, _ bool) { s.note(object, true) }
func (s *slowHandler) OnUpdate(_, object any)   { s.note(object, true) }
func (s *slowHandler) OnDelete(object any)      { s.note(object, false) }

// A handler that knows objects of another API server, with versions that this one will not reach
// for long, does not wait for these: neither for one informer of all namespaces nor for one of
// each.
func TestSetResumesAtAnotherServer(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	u.grantRBAC(t)
	ns := createNamespace(t)
	create(t, configMap(ns, "here"))
	everywhere := u.grant(t, "", "configmaps", "list", "watch")
	u.grant(t, ns, "configmaps", "list", "watch")
	cached := u.start(t, scopedcache.Options{WatchRBAC: true, AccessReviewInterval: shortInterval}, cache.Options{})
	set, _ := cached.holdSet(t, scopedcache.WhereverAllowed(), nil)
	resume := func() *testutil.Recorder {
		there := configMap(ns, "there")
		there.ResourceVersion = "999999999999"
		handler := &testutil.Recorder{Key: func(object client.Object) string {
			if object.GetNamespace() == ns {
				return object.GetName()
			}
			return elsewhere
		}}
		seen := replay.Seen{client.ObjectKeyFromObject(there): replay.Remember(there)}
		_, err := set.AddEventHandler(replay.ResumedHandler{
			ResourceEventHandler: handler,
			Options:              replay.Options{Seen: seen},
		})
		g.Expect(err).NotTo(HaveOccurred())
		return handler
	}
	early := resume()
	g.Eventually(func() []string { return members(set) }).WithTimeout(patience).Should(ConsistOf(": Synced"))
	g.Eventually(early.Events).WithTimeout(patience).Should(ContainElements("add here", "delete unseen there"))
	everywhere.revoke(t)
	g.Eventually(func() []string { return members(set) }).WithTimeout(patience).Should(ConsistOf(ns + ": Synced"))
	late := resume()
	g.Eventually(late.Events).WithTimeout(patience).Should(ConsistOf("add here", "delete unseen there"))
	everywhere.restore(t)
	g.Eventually(func() []string { return members(set) }).WithTimeout(patience).Should(ConsistOf(": Synced"))
	create(t, configMap(ns, "after"))
	g.Eventually(late.Events).WithTimeout(patience).Should(ContainElement("add after"))
	g.Expect(late.Events()).NotTo(ContainElement("delete here"))
}

// A handler of a set is called by one of its namespaces at a time, receives what is there when it
// comes late, and nothing after the release.
func TestHandlersOfASet(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	all := make([]string, 5)
	for i := range all {
		all[i] = createNamespace(t)
		u.grant(t, all[i], "configmaps", "list", "watch")
		for n := range 10 {
			create(t, configMap(all[i], fmt.Sprint(all[i], n)))
		}
	}
	cached := u.start(t, scopedcache.Options{}, cache.Options{})
	set, recorder := cached.holdSet(t, scopedcache.InNamespaces(all...), nil, all...)
	busy := &slowHandler{continues: make(chan struct{})}
	registration, err := set.AddEventHandler(busy)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(busy.hanging.Load).WithTimeout(patience).Should(BeEquivalentTo(1))
	g.Eventually(recorder.Events).WithTimeout(patience).Should(HaveLen(50), "another handler goes on")
	g.Expect(busy.together.Load()).To(BeFalse())
	g.Expect(registration.HasSynced()).To(BeFalse())
	close(busy.continues)
	g.Eventually(registration.HasSynced).WithTimeout(patience).Should(BeTrue())
	g.Expect(busy.objects()).To(HaveLen(50))

	late := newLedger()
	last, err := set.AddEventHandler(late)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(last.HasSynced).WithTimeout(patience).Should(BeTrue())
	g.Expect(late.versions()).To(HaveLen(50))
	g.Expect(set.RemoveEventHandler(last)).To(Succeed())
	g.Expect(set.RemoveEventHandler(registration)).To(Succeed())
	g.Expect(set.AddIndexers(toolscache.Indexers{"all": func(any) ([]string, error) { return []string{"x"}, nil }})).
		To(Succeed())
	plain, err := cached.Hold(t.Context(), &corev1.ConfigMap{}, scopedcache.Scope{Namespace: all[0]},
		scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	defer plain.Release()
	other := &testutil.Recorder{}
	_, err = plain.AddEventHandler(other)
	g.Expect(err).NotTo(HaveOccurred())
	create(t, configMap(all[0], "heard"))
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ContainElement("add heard"))
	set.Release()
	create(t, configMap(all[0], "unheard"))
	g.Eventually(other.Events).WithTimeout(patience).Should(ContainElement("add unheard"))
	g.Expect(recorder.Events()).To(HaveLen(51))
	g.Expect(late.versions()).To(HaveLen(50))
	_, err = set.AddEventHandler(late)
	g.Expect(err).To(MatchError(scopedcache.ErrReleased))
	g.Expect(set.IsStopped()).To(BeTrue())
}

// While namespaces cannot be watched for a while, a set stays as it is.
func TestNamespacesThatCannotBeWatched(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	a, b := createNamespace(t), createNamespace(t)
	mark := labels.Set{"set": a}
	label(t, a, mark)
	label(t, b, mark)
	create(t, configMap(a, "in-a"), configMap(b, "in-b"))
	u.grant(t, "", "namespaces", "list", "watch")
	for _, ns := range []string{a, b} {
		u.grant(t, ns, "configmaps", "list", "watch")
	}
	server := newFaultyServer(t, u)
	cached := u.startWithConfig(t, server.config, scopedcache.Options{}, cache.Options{})
	states := &observed{}
	set, recorder := cached.holdSet(t, scopedcache.NamespacesWithLabels(labels.SelectorFromSet(mark)),
		states.observe(strings.NewReplacer(a, "a", b, "b")), a, b)
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ConsistOf("add in-a", "add in-b"))
	server.answerWith(func(w http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, "/api/v1/namespaces") {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}
		return false
	})
	server.CloseClientConnections()
	failing := func() bool {
		return slices.ContainsFunc(cached.States(), func(s scopedcache.ScopeState) bool {
			return s.GVK.Kind == "Namespace" && s.State == scopedcache.StateFailing
		})
	}
	g.Eventually(failing).WithTimeout(patience).Should(BeTrue())
	label(t, a, nil)
	g.Eventually(func() scopedcache.State { return set.State().State }).WithTimeout(patience).
		Should(Equal(scopedcache.StateSynced), "the informers of both go on, and which they are is not in doubt")
	create(t, configMap(a, "second"))
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ContainElement("add second"))
	g.Expect(recorder.Events()).NotTo(ContainElement(HavePrefix("delete")))
	server.answerWith(nil)
	g.Eventually(recorder.Events).WithTimeout(patience).
		Should(ContainElements("delete unseen in-a", "delete unseen second"))
	g.Expect(recorder.Events()).NotTo(ContainElement("delete unseen in-b"))
	g.Expect(members(set)).To(ConsistOf(b + ": Synced"))
}
