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

	"github.com/latchkey-dev/latchkey/internal/testutil"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// watchesOf is how many watches of a resource the API server serves, by its own metric.
func watchesOf(t testing.TB, resource string) int {
	t.Helper()
	g := NewWithT(t)
	open, err := cp.Metric(adminHTTP, "apiserver_longrunning_requests", `resource="`+resource+`"`, `verb="WATCH"`)
	g.Expect(err).NotTo(HaveOccurred())
	return open
}

func selecting(namespace, label string) scopedcache.Scope {
	return scopedcache.Scope{Namespace: namespace, LabelSelector: labels.SelectorFromSet(labels.Set{"colour": label})}
}

func coloured(namespace, name, label string) *corev1.ConfigMap {
	made := configMap(namespace, name)
	made.Labels = map[string]string{"colour": label}
	return made
}

// One kind by three selectors is three informers, each of which has what it selects and nothing
// else. The same selectors again, in other words, are the same informer: the API server serves one
// watch each.
func TestOneKindThreeSelectors(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := namespace(t), newUser(t)
	create(t, coloured(ns, "a", "red"), coloured(ns, "b", "green"), coloured(ns, "c", "blue"), configMap(ns, "d"))
	u.grant(t, ns, "configmaps", "list", "watch")
	before := watchesOf(t, "configmaps")
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: often}, cache.Options{})
	parsed, err := labels.Parse(" colour = red ")
	g.Expect(err).NotTo(HaveOccurred())
	var held []*scopedcache.Handle
	for _, one := range []struct {
		scope scopedcache.Scope
		want  string
	}{
		{selecting(ns, "red"), "a"}, {selecting(ns, "green"), "b"}, {selecting(ns, "blue"), "c"},
		{scopedcache.Scope{Namespace: ns, LabelSelector: parsed}, "a"},
	} {
		handle, err := c.Hold(ctx, &corev1.ConfigMap{}, one.scope, scopedcache.HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		held = append(held, handle)
		list := &corev1.ConfigMapList{}
		g.Expect(handle.List(ctx, list)).To(Succeed())
		g.Expect(namesOf(list)).To(Equal([]string{one.want}))
	}
	// They begin when the list has been read.
	watches := func() int { return watchesOf(t, "configmaps") - before }
	g.Eventually(watches).WithTimeout(patience).Should(Equal(3), "of four holders")
	g.Expect(c.States()).To(HaveLen(3))

	// What begins or ceases to be selected comes and goes.
	told := &testutil.Recorder{}
	_, err = held[0].AddEventHandler(told)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(told.Events).WithTimeout(patience).Should(Equal([]string{"add a"}))
	turned := coloured(ns, "b", "red")
	g.Expect(admin.Update(ctx, turned)).To(Succeed())
	g.Eventually(told.Events).WithTimeout(patience).Should(Equal([]string{"add a", "add b"}))
	turned.Labels = nil
	g.Expect(admin.Update(ctx, turned)).To(Succeed())
	g.Eventually(told.Events).WithTimeout(patience).Should(Equal([]string{"add a", "add b", "delete b"}))

	// Reads of the cache select nothing, so they have an informer of their own.
	g.Expect(c.names(ctx, ns)).To(ConsistOf("a", "b", "c", "d"))
	g.Eventually(watches).WithTimeout(patience).Should(Equal(4))
	for _, handle := range held {
		handle.Release()
	}
	g.Eventually(watches).WithTimeout(patience).Should(Equal(1))
}

// A scope lives as long as a dependent needs it. The same dependent twice counts once. When the
// last one leaves the watch ends, the objects are free, and whoever waits is told.
func TestLastDependentLeaves(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := namespace(t), newUser(t)
	create(t, coloured(ns, "a", "red"))
	u.grant(t, ns, "configmaps", "list", "watch")
	before := watchesOf(t, "configmaps")
	freed := make(chan weak.Pointer[corev1.ConfigMap], 10)
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: often},
		cache.Options{DefaultTransform: func(object any) (any, error) {
			if found, ok := object.(*corev1.ConfigMap); ok {
				freed <- weak.Make(found)
			}
			return object, nil
		}})
	hold := func(dependent string) *scopedcache.Handle {
		handle, err := c.Hold(ctx, &corev1.ConfigMap{}, selecting(ns, "red"),
			scopedcache.HoldOptions{Dependent: types.UID(dependent)})
		g.Expect(err).NotTo(HaveOccurred())
		return handle
	}
	one, again, other := hold("one"), hold("one"), hold("other")
	g.Expect(again).To(BeIdenticalTo(one))
	g.Expect(one.List(ctx, &corev1.ConfigMapList{})).To(Succeed())
	g.Expect(one.State().Dependents).To(Equal([]string{"one", "other"}))
	told := &testutil.Recorder{}
	_, err := one.AddEventHandler(told)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(told.Events).WithTimeout(patience).Should(Equal([]string{"add a"}))

	object := <-freed
	g.Expect(isFree(object)()).To(BeFalse(), "it is what the informer keeps")
	one.Release()
	watches := func() int { return watchesOf(t, "configmaps") - before }
	g.Expect(other.List(ctx, &corev1.ConfigMapList{})).To(Succeed(), "the other still needs it")
	g.Eventually(watches).WithTimeout(patience).Should(Equal(1))
	other.Release()
	other.Release()
	g.Eventually(watches).WithTimeout(patience).Should(BeZero())
	g.Expect(c.States()).To(BeEmpty())
	g.Expect(one.List(ctx, &corev1.ConfigMapList{})).To(MatchError(scopedcache.ErrReleased))
	g.Expect(one.IsStopped()).To(BeTrue())
	_, err = one.AddEventHandler(told)
	g.Expect(err).To(MatchError(scopedcache.ErrReleased))
	g.Eventually(isFree(object)).WithTimeout(patience).Should(BeTrue(), "the objects are free")
	create(t, coloured(ns, "b", "red"))

	// It begins anew for the next one.
	anew := hold("one")
	list := &corev1.ConfigMapList{}
	g.Expect(anew.List(ctx, list)).To(Succeed())
	g.Expect(namesOf(list)).To(ConsistOf("a", "b"))
	g.Expect(told.Events()).To(Equal([]string{"add a"}), "handlers of the earlier one hear nothing")
	anew.Release()
}

// Whoever waits for an informer that is given up is told at once.
func TestReleasedWhileWaiting(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := namespace(t), newUser(t)
	u.grant(t, ns, "configmaps", "list", "watch")
	f := newFaults(t, u)
	f.hangOn("/configmaps")
	c := u.startAt(t, f.config, scopedcache.Options{PerNamespace: true, AccessReviewInterval: often}, cache.Options{})
	held, err := c.Hold(ctx, &corev1.ConfigMap{}, selecting(ns, "red"), scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	waits := make(chan error, 2)
	go func() { waits <- held.List(ctx, &corev1.ConfigMapList{}) }()
	go func() { waits <- c.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns)) }()
	g.Eventually(c.States).WithTimeout(patience).Should(HaveLen(2))
	g.Eventually(f.hanging).WithTimeout(patience).Should(Equal(2))
	held.Release()
	g.Eventually(waits).WithTimeout(patience).Should(Receive(MatchError(scopedcache.ErrReleased)))
	g.Consistently(waits, 300*time.Millisecond).ShouldNot(Receive(), "the other one waits for another scope")
	g.Expect(c.RemoveInformer(ctx, &corev1.ConfigMap{})).To(Succeed())
	g.Eventually(waits).WithTimeout(patience).Should(Receive(MatchError(scopedcache.ErrReleased)))
}

// What was started by reads is stopped when nobody reads it any more, and starts again for the next
// one.
func TestIdleReads(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := namespace(t), newUser(t)
	create(t, configMap(ns, "a"))
	u.grant(t, ns, "configmaps", "list", "watch")
	c := u.start(t, scopedcache.Options{PerNamespace: true, AccessReviewInterval: often, IdleTimeout: time.Second},
		cache.Options{})
	begun := time.Now()
	for time.Since(begun) < 3*time.Second {
		g.Expect(c.names(ctx, ns)).To(Equal([]string{"a"}))
		<-time.After(10 * time.Millisecond)
	}
	g.Expect(u.sent.of("/configmaps")).To(Equal(1), "it was read all the time")
	g.Eventually(c.States).WithTimeout(patience).Should(BeEmpty())
	g.Expect(c.names(ctx, ns)).To(Equal([]string{"a"}))
	g.Expect(u.sent.of("/configmaps")).To(Equal(2))

	// What is forbidden is not asked for for ever either.
	g.Expect(c.refused(ctx, namespace(t))).To(BeTrue())
	g.Eventually(c.States).WithTimeout(patience).Should(BeEmpty())

	// Who holds it keeps it, and so does who got its informer.
	_, err := c.GetInformer(ctx, &corev1.ConfigMap{})
	g.Expect(err).NotTo(HaveOccurred())
	held, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(held.List(ctx, &corev1.ConfigMapList{})).To(Succeed())
	g.Consistently(c.States, 3*time.Second).Should(HaveLen(2))
	held.Release()
}
