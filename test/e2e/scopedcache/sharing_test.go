package scopedcache_test

import (
	"testing"
	"time"
	"weak"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// watchesOf returns the number of watches of a resource that the API server serves, according to
// its own metric.
func watchesOf(t testing.TB, resource string) int {
	t.Helper()
	g := NewWithT(t)
	open, err := cp.Metric(adminHTTP, "apiserver_longrunning_requests", `resource="`+resource+`"`, `verb="WATCH"`)
	g.Expect(err).NotTo(HaveOccurred())
	return open
}

func colourScope(namespace, label string) scopedcache.Scope {
	return scopedcache.Scope{Namespace: namespace, LabelSelector: labels.SelectorFromSet(labels.Set{"colour": label})}
}

func colouredConfigMap(namespace, name, label string) *corev1.ConfigMap {
	object := configMap(namespace, name)
	object.Labels = map[string]string{"colour": label}
	return object
}

// TestOneKindThreeSelectors checks that three selectors of one kind have three informers. Each has
// exactly the objects that its selector matches. An equal selector in another notation shares the
// informer, so the API server serves one watch for each of the three.
func TestOneKindThreeSelectors(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := createNamespace(t), newUser(t)
	create(t, colouredConfigMap(ns, "a", "red"), colouredConfigMap(ns, "b", "green"),
		colouredConfigMap(ns, "c", "blue"), configMap(ns, "d"))
	u.grant(t, ns, "configmaps", "list", "watch")
	before := watchesOf(t, "configmaps")
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: shortInterval}, cache.Options{})
	parsed, err := labels.Parse(" colour = red ")
	g.Expect(err).NotTo(HaveOccurred())
	var handles []*scopedcache.Handle
	for _, one := range []struct {
		scope scopedcache.Scope
		want  string
	}{
		{colourScope(ns, "red"), "a"}, {colourScope(ns, "green"), "b"}, {colourScope(ns, "blue"), "c"},
		{scopedcache.Scope{Namespace: ns, LabelSelector: parsed}, "a"},
	} {
		handle, err := c.Hold(ctx, &corev1.ConfigMap{}, one.scope, scopedcache.HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		handles = append(handles, handle)
		list := &corev1.ConfigMapList{}
		g.Expect(handle.List(ctx, list)).To(Succeed())
		g.Expect(namesOf(list)).To(Equal([]string{one.want}))
	}
	// The watches begin when the list has been read.
	watches := func() int { return watchesOf(t, "configmaps") - before }
	g.Eventually(watches).WithTimeout(patience).Should(Equal(3), "four handles share three watches")
	g.Expect(c.States()).To(HaveLen(3))

	// Handlers receive an add event when an object begins to match the selector, and a delete event
	// when it no longer matches.
	recorder := &testutil.Recorder{}
	_, err = handles[0].AddEventHandler(recorder)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(recorder.Events).WithTimeout(patience).Should(Equal([]string{"add a"}))
	changed := colouredConfigMap(ns, "b", "red")
	g.Expect(admin.Update(ctx, changed)).To(Succeed())
	g.Eventually(recorder.Events).WithTimeout(patience).Should(Equal([]string{"add a", "add b"}))
	changed.Labels = nil
	g.Expect(admin.Update(ctx, changed)).To(Succeed())
	g.Eventually(recorder.Events).WithTimeout(patience).Should(Equal([]string{"add a", "add b", "delete b"}))

	// Reads through the cache use no selector, so they have an informer of their own.
	g.Expect(c.names(ctx, ns)).To(ConsistOf("a", "b", "c", "d"))
	g.Eventually(watches).WithTimeout(patience).Should(Equal(4))
	for _, handle := range handles {
		handle.Release()
	}
	g.Eventually(watches).WithTimeout(patience).Should(Equal(1))
}

// TestLastDependentLeaves checks that a scope exists as long as a dependent holds it. A dependent
// that holds it twice counts once. After the last one releases it the watch ends, the objects are
// freed, and calls through the handles return ErrReleased.
func TestLastDependentLeaves(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := createNamespace(t), newUser(t)
	create(t, colouredConfigMap(ns, "a", "red"))
	u.grant(t, ns, "configmaps", "list", "watch")
	before := watchesOf(t, "configmaps")
	cached := make(chan weak.Pointer[corev1.ConfigMap], 10)
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: shortInterval},
		cache.Options{DefaultTransform: func(object any) (any, error) {
			if found, ok := object.(*corev1.ConfigMap); ok {
				cached <- weak.Make(found)
			}
			return object, nil
		}})
	hold := func(dependent string) *scopedcache.Handle {
		handle, err := c.Hold(ctx, &corev1.ConfigMap{}, colourScope(ns, "red"),
			scopedcache.HoldOptions{Dependent: types.UID(dependent)})
		g.Expect(err).NotTo(HaveOccurred())
		return handle
	}
	one, same, other := hold("one"), hold("one"), hold("other")
	g.Expect(same).To(BeIdenticalTo(one))
	g.Expect(one.List(ctx, &corev1.ConfigMapList{})).To(Succeed())
	g.Expect(one.State().Dependents).To(Equal([]string{"one", "other"}))
	recorder := &testutil.Recorder{}
	_, err := one.AddEventHandler(recorder)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(recorder.Events).WithTimeout(patience).Should(Equal([]string{"add a"}))

	object := <-cached
	g.Expect(isCollected(object)()).To(BeFalse(), "the informer holds this object")
	one.Release()
	watches := func() int { return watchesOf(t, "configmaps") - before }
	g.Expect(other.List(ctx, &corev1.ConfigMapList{})).To(Succeed(), "the other dependent still holds the scope")
	g.Eventually(watches).WithTimeout(patience).Should(Equal(1))
	other.Release()
	other.Release()
	g.Eventually(watches).WithTimeout(patience).Should(BeZero())
	g.Expect(c.States()).To(BeEmpty())
	g.Expect(one.List(ctx, &corev1.ConfigMapList{})).To(MatchError(scopedcache.ErrReleased))
	g.Expect(one.IsStopped()).To(BeTrue())
	_, err = one.AddEventHandler(recorder)
	g.Expect(err).To(MatchError(scopedcache.ErrReleased))
	g.Eventually(isCollected(object)).WithTimeout(patience).Should(BeTrue(), "the objects are freed")
	create(t, colouredConfigMap(ns, "b", "red"))

	// The next dependent gets a new informer.
	reopened := hold("one")
	list := &corev1.ConfigMapList{}
	g.Expect(reopened.List(ctx, list)).To(Succeed())
	g.Expect(namesOf(list)).To(ConsistOf("a", "b"))
	g.Expect(recorder.Events()).To(Equal([]string{"add a"}), "handlers of the released informer receive no events")
	reopened.Release()
}

// TestReleasedWhileWaiting checks that a read that waits for an informer returns ErrReleased at
// once when the informer is released or removed.
func TestReleasedWhileWaiting(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := createNamespace(t), newUser(t)
	u.grant(t, ns, "configmaps", "list", "watch")
	server := newFaultyServer(t, u)
	server.hangRequests("/configmaps")
	c := u.startWithConfig(t, server.config,
		scopedcache.Options{PerNamespace: true, AccessReviewInterval: shortInterval}, cache.Options{})
	handle, err := c.Hold(ctx, &corev1.ConfigMap{}, colourScope(ns, "red"), scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	results := make(chan error, 2)
	go func() { results <- handle.List(ctx, &corev1.ConfigMapList{}) }()
	go func() { results <- c.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns)) }()
	g.Eventually(c.States).WithTimeout(patience).Should(HaveLen(2))
	g.Eventually(server.hanging).WithTimeout(patience).Should(Equal(2))
	handle.Release()
	g.Eventually(results).WithTimeout(patience).Should(Receive(MatchError(scopedcache.ErrReleased)))
	g.Consistently(results, 300*time.Millisecond).ShouldNot(Receive(), "the other read waits for another scope")
	g.Expect(c.RemoveInformer(ctx, &corev1.ConfigMap{})).To(Succeed())
	g.Eventually(results).WithTimeout(patience).Should(Receive(MatchError(scopedcache.ErrReleased)))
}

// TestIdleReads checks that the cache stops an informer that a read started when no more reads use
// it. The next read starts a new informer.
func TestIdleReads(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := createNamespace(t), newUser(t)
	create(t, configMap(ns, "a"))
	u.grant(t, ns, "configmaps", "list", "watch")
	c := u.start(t,
		scopedcache.Options{PerNamespace: true, AccessReviewInterval: shortInterval, IdleTimeout: time.Second},
		cache.Options{})
	began := time.Now()
	for time.Since(began) < 3*time.Second {
		g.Expect(c.names(ctx, ns)).To(Equal([]string{"a"}))
		<-time.After(10 * time.Millisecond)
	}
	g.Expect(u.requests.lists("/configmaps")).To(Equal(1), "continuous reads keep the informer")
	g.Eventually(c.States).WithTimeout(patience).Should(BeEmpty())
	g.Expect(c.names(ctx, ns)).To(Equal([]string{"a"}))
	g.Expect(u.requests.lists("/configmaps")).To(Equal(2))

	// The cache also stops sending access reviews for a forbidden scope that is idle.
	g.Expect(c.isForbidden(ctx, createNamespace(t))).To(BeTrue())
	g.Eventually(c.States).WithTimeout(patience).Should(BeEmpty())

	// An informer does not become idle while a caller holds its scope or got it from GetInformer.
	_, err := c.GetInformer(ctx, &corev1.ConfigMap{})
	g.Expect(err).NotTo(HaveOccurred())
	handle, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(handle.List(ctx, &corev1.ConfigMapList{})).To(Succeed())
	g.Consistently(c.States, 3*time.Second).Should(HaveLen(2))
	handle.Release()
}
