package contract

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// watchNamespaces tests a watch of a set of namespaces. The identity may be without permission in
// the second one.
func watchNamespaces(t *testing.T, w World) {
	g := NewWithT(t)
	ctx := t.Context()
	connect(t, w, "red")
	c := newController()
	watch := func(scope clustercache.Scope) error {
		return w.Cache().Watch(ctx, key("red"), clustercache.NewWatcher(clustercache.WatcherOptions{
			Name:         "set",
			Watcher:      c,
			Kind:         &corev1.ConfigMap{},
			EventHandler: c,
			Scope:        scope,
		}))
	}
	both := scopedcache.InNamespaces("elsewhere", w.Namespace())
	g.Expect(watch(clustercache.Scope{Namespace: "a", Namespaces: both})).
		To(MatchError(ContainSubstring("set one of them")))
	g.Expect(watch(clustercache.Scope{Namespaces: scopedcache.InNamespaces()})).
		To(MatchError(ContainSubstring("selects nothing")))
	g.Expect(watch(clustercache.Scope{Namespaces: scopedcache.InNamespaces("a/b")})).NotTo(Succeed())

	g.Expect(watch(clustercache.Scope{Namespaces: both})).To(Succeed())
	g.Expect(watch(clustercache.Scope{Namespaces: scopedcache.InNamespaces(w.Namespace(), "elsewhere")})).
		To(Succeed(), "the same set")
	g.Expect(watch(clustercache.Scope{Namespaces: scopedcache.InNamespaces("elsewhere")})).
		To(MatchError(clustercache.ErrWatchConflict))
	g.Expect(watch(clustercache.Scope{Namespace: w.Namespace()})).
		To(MatchError(clustercache.ErrWatchConflict))
	g.Expect(w.Content().Create(ctx, configMap(w, "a"))).To(Succeed())
	g.Eventually(c.heard).WithTimeout(patience).Should(ContainElement("create a"))
	state, _ := w.Cache().GetConnectionState(ctx, key("red"))
	g.Expect(state.Watches).To(HaveExactElements(HaveField("Scope.Namespaces.Names()",
		ConsistOf("elsewhere", w.Namespace()))))

	disconnect(t, w, "red")
	g.Expect(w.Content().Delete(ctx, configMap(w, "a"))).To(Succeed())
	connect(t, w, "red")
	g.Eventually(c.heard).WithTimeout(patience).Should(ContainElements("create a", "delete a"))
	w.Cache().Unwatch(ctx, key("red"), "set")
	g.Expect(c.sources()).To(Equal(1))
}

// label sets the labels of the content's namespace, which a world may have left out.
func label(t *testing.T, w World, set labels.Set) {
	t.Helper()
	g := NewWithT(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.Namespace()}}
	if err := w.Content().Create(t.Context(), namespace); err != nil {
		g.Expect(err).To(Satisfy(apierrors.IsAlreadyExists))
	}
	g.Expect(w.Content().Get(t.Context(), client.ObjectKeyFromObject(namespace), namespace)).To(Succeed())
	before := namespace.DeepCopy()
	namespace.Labels = set
	g.Expect(w.Content().Patch(t.Context(), namespace, client.MergeFrom(before))).To(Succeed())
}

// watchLabels tests a watch of the namespaces with labels.
func watchLabels(t *testing.T, w World) {
	g := NewWithT(t)
	ctx := t.Context()
	connect(t, w, "red")
	mark := labels.Set{"watched-by": w.Namespace()}
	c := newController()
	g.Expect(w.Content().Create(ctx, configMap(w, "labelled"))).To(Succeed())
	t.Cleanup(func() { _ = w.Content().Delete(context.Background(), configMap(w, "labelled")) })
	g.Expect(w.Cache().Watch(ctx, key("red"), clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "labels",
		Watcher:      c,
		Kind:         &corev1.ConfigMap{},
		EventHandler: c,
		Scope:        clustercache.Scope{Namespaces: scopedcache.NamespacesWithLabels(labels.SelectorFromSet(mark))},
	}))).To(Succeed())
	heard := func() []string { // not of what the cluster itself puts into each namespace
		return slices.DeleteFunc(c.heard(), func(event string) bool { return !strings.HasSuffix(event, "labelled") })
	}
	label(t, w, mark)
	g.Eventually(heard).WithTimeout(patience).Should(Equal([]string{"create labelled"}))
	label(t, w, nil)
	g.Eventually(heard).WithTimeout(patience).Should(Equal([]string{"create labelled", "delete labelled"}))
	label(t, w, mark)
	g.Eventually(heard).WithTimeout(patience).Should(HaveLen(3))
	disconnect(t, w, "red")
	connect(t, w, "red")
	g.Eventually(heard).WithTimeout(patience).Should(HaveLen(4))
	g.Expect(heard()[3]).To(Equal("create labelled"), "as after any reconnect, and no deletion")

	disconnect(t, w, "red")
	label(t, w, nil)
	connect(t, w, "red")
	g.Eventually(heard).WithTimeout(patience).Should(Equal([]string{"create labelled", "delete labelled",
		"create labelled", "create labelled", "delete labelled"}), "it left while there was no connection")
	w.Cache().Unwatch(ctx, key("red"), "labels")
}

// watchAllowed tests a watch wherever the identity may list and watch.
func watchAllowed(t *testing.T, w World) {
	g := NewWithT(t)
	ctx := t.Context()
	connect(t, w, "red")
	c := newController()
	var mu sync.Mutex
	var states []scopedcache.State
	g.Expect(w.Cache().Watch(ctx, key("red"), clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "allowed",
		Watcher:      c,
		Kind:         &corev1.ConfigMap{},
		EventHandler: c,
		Scope:        clustercache.Scope{Namespaces: scopedcache.WhereverAllowed()},
		OnError: func(_ context.Context, err clustercache.WatchError) {
			mu.Lock()
			defer mu.Unlock()
			if err.Scope.Namespace == w.Namespace() {
				states = append(states, err.State)
			}
		},
	}))).To(Succeed())
	for _, name := range []string{"allowed", "later"} {
		g.Expect(w.Content().Create(ctx, configMap(w, name))).To(Succeed())
		t.Cleanup(func() { _ = w.Content().Delete(context.Background(), configMap(w, name)) })
		g.Eventually(c.heard).WithTimeout(patience).Should(ContainElement("create " + name))
	}
	w.Restrict(t, "red")
	g.Eventually(func() []scopedcache.State {
		mu.Lock()
		defer mu.Unlock()
		return append([]scopedcache.State{}, states...)
	}).WithTimeout(patience).Should(ContainElement(scopedcache.StateForbidden))
	g.Expect(w.Content().Delete(ctx, configMap(w, "later"))).To(Succeed())
	c.forget()
	w.Permit(t, "red")
	g.Eventually(c.heard).WithTimeout(patience).Should(ContainElements("create allowed", "delete later"))
	g.Expect(c.heard()).NotTo(ContainElement("delete allowed"), "permission deletes nothing")
}
