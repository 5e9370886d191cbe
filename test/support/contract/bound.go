package contract

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// Views that are bound to an object work for that object, and for no other one of its name.
func boundToObject(t *testing.T, w World) {
	g := NewWithT(t)
	ctx := t.Context()
	connect(t, w, "red")
	g.Expect(w.Content().Create(ctx, configMap(w, "there"))).To(Succeed())
	object := w.Object(t, "red")
	own := w.Cache().For(ctx, object)
	c, err := own.GetClient(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	there := client.ObjectKeyFromObject(configMap(w, "there"))
	reader, err := own.GetReader(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(reader.Get(ctx, there, &corev1.ConfigMap{})).To(Succeed())
	uncached, err := own.GetUncachedClient(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(uncached.Get(ctx, there, &corev1.ConfigMap{})).To(Succeed())
	config, err := own.GetRESTConfig(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.Host).NotTo(BeEmpty())
	whole, err := own.GetCluster(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(whole.GetClient().Get(ctx, there, &corev1.ConfigMap{})).To(Succeed())
	for getter, call := range boundGetters(w, own, "bound") {
		g.Expect(call(ctx)).To(Succeed(), getter)
	}
	state, known := own.GetConnectionState(ctx)
	g.Expect(known).To(BeTrue())
	g.Expect(state.Phase).To(Equal(clustercache.PhaseConnected))
	g.Expect(state.Watches).To(HaveLen(2))

	recreated := w.Object(t, "red")
	recreated.SetUID("another")
	otherKind := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: object.GetUID()}}
	expectMistake := func() {
		for getter, call := range boundGetters(w, w.Cache().For(ctx, otherKind), "mistake") {
			err := call(ctx)
			g.Expect(err).To(HaveOccurred(), getter)
			g.Expect(err).NotTo(MatchError(clustercache.ErrNotConnected), "%s: no time heals it", getter)
			condition := clustercache.Condition(err, 1)
			g.Expect(condition.Status).To(Equal(metav1.ConditionUnknown), getter)
		}
		_, known := w.Cache().For(ctx, otherKind).GetConnectionState(ctx)
		g.Expect(known).To(BeFalse())
	}
	expectMistake()
	for what, stale := range map[string]client.Object{"another UID": recreated} {
		view := w.Cache().For(ctx, stale)
		for getter, call := range boundGetters(w, view, "stale") {
			err := call(ctx)
			var notConnected *clustercache.NotConnectedError
			g.Expect(errors.As(err, &notConnected)).To(BeTrue(), "%s: %s: %v", what, getter, err)
			g.Expect(notConnected.Reason).To(Equal(clustercache.ReasonStale), "%s: %s", what, getter)
			g.Expect(notConnected.Extension).To(Equal(key("red")))
			g.Expect(notConnected.Err).To(HaveOccurred())
			g.Expect(errors.Cause(err)).To(BeIdenticalTo(clustercache.ErrNotConnected))
		}
		_, known := view.GetConnectionState(ctx)
		g.Expect(known).To(BeFalse(), what)
	}
	w.Cache().For(ctx, recreated).Unwatch(ctx, "bound")
	w.Cache().For(ctx, otherKind).Unwatch(ctx, "bound")
	state, _ = own.GetConnectionState(ctx)
	g.Expect(state.Watches).To(HaveLen(2), "stale calls register nothing and end nothing")
	own.Unwatch(ctx, "bound")
	own.Unwatch(ctx, "bound content")
	state, _ = own.GetConnectionState(ctx)
	g.Expect(state.Watches).To(BeEmpty())

	disconnect(t, w, "red")
	expectMistake()
	_, err = own.GetClient(ctx)
	var notConnected *clustercache.NotConnectedError
	g.Expect(errors.As(err, &notConnected)).To(BeTrue())
	g.Expect(notConnected.Reason).To(Equal(clustercache.ReasonServiceAccountNotFound))
	g.Expect(c.Get(ctx, client.ObjectKeyFromObject(configMap(w, "there")), &corev1.ConfigMap{})).
		To(MatchError(clustercache.ErrNotConnected), "a client ends with its connection")
	_, known = own.GetConnectionState(ctx)
	g.Expect(known).To(BeTrue())
}

// boundGetters returns a call of each method of a view that needs a connection.
func boundGetters(w World, view clustercache.Bound, name string) map[string]func(context.Context) error {
	watcher := clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         name,
		Kind:         &corev1.ConfigMap{},
		Watcher:      newController(),
		EventHandler: &handler.EnqueueRequestForObject{},
	})
	content := clustercache.NewContentWatch(clustercache.ContentWatchOptions{
		Name: name + " content",
		Objects: []client.Object{
			configMap(w, "there"),
		},
		Watcher:      newController(),
		EventHandler: &handler.EnqueueRequestForObject{},
	})
	return map[string]func(context.Context) error{
		"GetClient":         func(ctx context.Context) error { _, err := view.GetClient(ctx); return err },
		"GetReader":         func(ctx context.Context) error { _, err := view.GetReader(ctx); return err },
		"GetUncachedClient": func(ctx context.Context) error { _, err := view.GetUncachedClient(ctx); return err },
		"GetRESTConfig":     func(ctx context.Context) error { _, err := view.GetRESTConfig(ctx); return err },
		"GetCluster":        func(ctx context.Context) error { _, err := view.GetCluster(ctx); return err },
		"CheckPermissions": func(ctx context.Context) error {
			_, err := view.CheckPermissions(ctx, clustercache.PermissionCheck{})
			return err
		},
		"Watch":        func(ctx context.Context) error { return view.Watch(ctx, watcher) },
		"WatchContent": func(ctx context.Context) error { return view.WatchContent(ctx, content) },
	}
}
