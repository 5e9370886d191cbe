package contract

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

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
