package contract

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// Watches deliver copies to their controller, survive a reconnect, and end with Unwatch or with the
// extension.
func watch(t *testing.T, w World) {
	g := NewWithT(t)
	ctx := t.Context()
	connect(t, w, "red")
	c := newController()
	watcher := watcherOf(w, c, "watch", &corev1.ConfigMap{}, "")
	g.Expect(w.Cache().Watch(ctx, key("red"), watcher)).To(Succeed())
	g.Expect(w.Cache().Watch(ctx, key("red"), watcher)).To(Succeed(), "registering the same watch again is a no-op")
	object := configMap(w, "one")
	g.Expect(w.Content().Create(ctx, object)).To(Succeed())
	g.Eventually(c.heard).WithTimeout(patience).Should(ContainElement("create one"))
	object.Data = map[string]string{"changed": "yes"}
	g.Expect(w.Content().Update(ctx, object)).To(Succeed())
	g.Eventually(c.heard).WithTimeout(patience).Should(ContainElement("update one"))

	// Handlers get copies: another watch still receives the names that the first watch's handler
	// changed.
	again := newController()
	g.Expect(w.Cache().Watch(ctx, key("red"), watcherOf(w, again, "again", &corev1.ConfigMap{}, ""))).To(Succeed())
	g.Eventually(again.heard).WithTimeout(patience).Should(ContainElement("create one"))
	w.Cache().Unwatch(ctx, key("red"), "again")

	// Watch every representation.
	asMetadata := &metav1.PartialObjectMetadata{}
	asMetadata.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	asUnstructured := &unstructured.Unstructured{}
	asUnstructured.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	for name, kind := range map[string]client.Object{"metadata": asMetadata, "unstructured": asUnstructured} {
		other := newController()
		g.Expect(w.Cache().Watch(ctx, key("red"), watcherOf(w, other, name, kind, ""))).To(Succeed())
		g.Eventually(other.heard).WithTimeout(patience).Should(ContainElement("create one"), name)
		g.Expect(other.types()).To(HaveKey(fmt.Sprintf("%T", kind)))
		w.Cache().Unwatch(ctx, key("red"), name)
	}

	// The watch resumes by itself, and then delivers the changes that it missed.
	lost := configMap(w, "lost")
	g.Expect(w.Content().Create(ctx, lost)).To(Succeed())
	g.Eventually(c.heard).WithTimeout(patience).Should(ContainElement("create lost"))
	disconnect(t, w, "red")
	state, _ := w.Cache().GetConnectionState(ctx, key("red"))
	g.Expect(state.Watches).To(HaveLen(1), "the watch stays registered")
	c.forget()
	g.Expect(w.Content().Create(ctx, configMap(w, "two"))).To(Succeed())
	g.Expect(w.Content().Delete(ctx, lost)).To(Succeed())
	connect(t, w, "red")
	g.Eventually(c.heard).WithTimeout(patience).Should(ContainElements("create one", "create two", "delete lost"))
	g.Expect(w.Content().Delete(ctx, object)).To(Succeed())
	g.Eventually(c.heard).WithTimeout(patience).Should(ContainElement("delete one"))
	g.Expect(c.sources()).To(Equal(1), "the controller has one source")

	w.Cache().Unwatch(ctx, key("red"), "watch")
	w.Cache().Unwatch(ctx, key("red"), "watch")
	c.forget()
	other := newController()
	g.Expect(w.Cache().Watch(ctx, key("red"), watcherOf(w, other, "other", &corev1.ConfigMap{}, ""))).To(Succeed())
	g.Expect(w.Content().Create(ctx, configMap(w, "three"))).To(Succeed())
	g.Eventually(other.heard).WithTimeout(patience).Should(ContainElement("create three"))
	g.Expect(c.heard()).To(BeEmpty())

	remove(t, w, "red")
	other.forget()
	connect(t, w, "red")
	state, _ = w.Cache().GetConnectionState(ctx, key("red"))
	g.Expect(state.Watches).To(BeEmpty(), "another extension of that name starts without watches")
}

func watchConflict(t *testing.T, w World) {
	g := NewWithT(t)
	ctx := t.Context()
	connect(t, w, "red")
	c := newController()
	g.Expect(w.Cache().Watch(ctx, key("red"), watcherOf(w, c, "watch", &corev1.ConfigMap{}, ""))).To(Succeed())
	g.Expect(w.Cache().Watch(ctx, key("red"), watcherOf(w, c, "watch", &corev1.Secret{}, ""))).
		To(MatchError(clustercache.ErrWatchConflict))
	everywhere := clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "watch",
		Watcher:      c,
		Kind:         &corev1.ConfigMap{},
		EventHandler: c,
	})
	g.Expect(w.Cache().Watch(ctx, key("red"), everywhere)).To(MatchError(clustercache.ErrWatchConflict))
	g.Expect(w.Cache().WatchContent(ctx, key("red"), contentOf(c, "watch"))).To(MatchError(clustercache.ErrWatchConflict))
	gadget := &unstructured.Unstructured{}
	gadget.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.test", Version: "v1", Kind: "Gadget"})
	// A kind that is not served is no error of Watch: the watch waits for the kind.
	reports := make(chan clustercache.WatchError, 10)
	g.Expect(w.Cache().
		Watch(ctx, key("red"),
			clustercache.NewWatcher(clustercache.WatcherOptions{
				Name:         "gadgets",
				Watcher:      c,
				Kind:         gadget,
				EventHandler: c,
				OnError:      func(_ context.Context, err clustercache.WatchError) { reports <- err },
			}))).To(Succeed())
	var missing clustercache.WatchError
	g.Eventually(reports).WithTimeout(patience).Should(Receive(&missing))
	g.Expect(meta.IsNoMatchError(missing.Err)).To(BeTrue())
	g.Expect(string(missing.State)).To(Equal("NotServed"))
	state, _ := w.Cache().GetConnectionState(ctx, key("red"))
	g.Expect(state.Watches).To(HaveLen(2))
	g.Expect(w.Cache().
		Watch(ctx, key("red"),
			clustercache.NewWatcher(clustercache.WatcherOptions{Name: "incomplete", Kind: &corev1.ConfigMap{}}))).
		NotTo(Succeed())
}

func watchDependents(t *testing.T, w World) {
	g := NewWithT(t)
	ctx := t.Context()
	connect(t, w, "red")
	for _, dependent := range []types.UID{"b", "a", "b"} {
		g.Expect(w.Cache().
			Watch(ctx, key("red"), watcherOf(w, newController(), "watch", &corev1.ConfigMap{}, dependent))).To(Succeed())
	}
	dependents := func() (list []types.UID) {
		state, _ := w.Cache().GetConnectionState(ctx, key("red"))
		for _, watch := range state.Watches {
			list = append(list, watch.Dependents...)
		}
		return list
	}
	g.Expect(dependents()).To(Equal([]types.UID{"a", "b"}))
	w.Cache().Unwatch(ctx, key("red"), "watch", "b", "unknown")
	g.Expect(dependents()).To(Equal([]types.UID{"a"}))
	w.Cache().Unwatch(ctx, key("red"), "watch", "a")
	g.Expect(dependents()).To(BeEmpty())
}

func unwatchInsideAHandler(t *testing.T, w World) {
	g := NewWithT(t)
	connect(t, w, "red")
	for _, name := range []string{"one", "two", "three"} {
		g.Expect(w.Content().Create(t.Context(), configMap(w, name))).To(Succeed())
	}
	c := newController()
	c.before = func(ctx context.Context) { w.Cache().Unwatch(ctx, key("red"), "watch") }
	g.Expect(w.Cache().Watch(t.Context(), key("red"), watcherOf(w, c, "watch", &corev1.ConfigMap{}, ""))).To(Succeed())
	g.Eventually(c.heard).WithTimeout(patience).Should(HaveLen(1))
	state, _ := w.Cache().GetConnectionState(t.Context(), key("red"))
	g.Expect(state.Watches).To(BeEmpty())
	other := newController()
	g.Expect(w.Cache().Watch(t.Context(), key("red"), watcherOf(w, other, "other", &corev1.ConfigMap{}, ""))).
		To(Succeed())
	g.Eventually(other.heard).WithTimeout(patience).Should(ContainElements("create one", "create two", "create three"))
	g.Expect(c.heard()).To(HaveLen(1))
}

func watchContent(t *testing.T, w World) {
	g := NewWithT(t)
	ctx := t.Context()
	connect(t, w, "red")
	c := newController()
	kinds := func() (list []string) {
		state, _ := w.Cache().GetConnectionState(ctx, key("red"))
		for _, watch := range state.Watches {
			list = append(list, watch.Kind.Kind)
		}
		return list
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace(), Name: "secret"}}
	g.Expect(w.Cache().WatchContent(ctx, key("red"),
		contentOf(c, "content", configMap(w, "a"), configMap(w, "b"), secret))).To(Succeed())
	g.Expect(kinds()).To(Equal([]string{"ConfigMap", "Secret"}))
	g.Expect(w.Content().Create(ctx, secret)).To(Succeed())
	g.Eventually(c.heard).WithTimeout(patience).Should(ContainElement("create secret"))
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace(), Name: "service"}}
	g.Expect(w.Cache().WatchContent(ctx, key("red"), contentOf(c, "content", configMap(w, "a"), service))).To(Succeed())
	g.Expect(kinds()).To(Equal([]string{"ConfigMap", "Service"}))
	g.Expect(w.Cache().Watch(ctx, key("red"), watcherOf(w, c, "content", &corev1.ConfigMap{}, ""))).
		To(MatchError(clustercache.ErrWatchConflict))

	disconnect(t, w, "red")
	connect(t, w, "red")
	g.Expect(w.Content().Create(ctx, configMap(w, "a"))).To(Succeed())
	g.Eventually(c.heard).WithTimeout(patience).Should(ContainElement("create a"))
	g.Expect(c.sources()).To(Equal(1))
	w.Cache().Unwatch(ctx, key("red"), "content")
	g.Expect(kinds()).To(BeEmpty())
}

// watcherOf returns a watcher of a kind in the world's namespace, whose events the controller
// records.
func watcherOf(w World, c *controller, name string, kind client.Object, dependent types.UID) clustercache.Watcher {
	return clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         name,
		Watcher:      c,
		Kind:         kind,
		EventHandler: c,
		Dependent:    dependent,
		Scope:        clustercache.Scope{Namespace: w.Namespace()},
	})
}

// contentOf returns a content watch whose events the controller records.
func contentOf(c *controller, name string, objects ...client.Object) clustercache.ContentWatch {
	return clustercache.NewContentWatch(clustercache.ContentWatchOptions{
		Name:         name,
		Watcher:      c,
		Objects:      objects,
		EventHandler: c,
	})
}
