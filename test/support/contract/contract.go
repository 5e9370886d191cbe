package contract

import (
	"context"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// patience bounds every wait.
const patience = 60 * time.Second

// World is the environment in which a ClusterCache is tested. Its methods return when their effect
// has begun; the tests wait for the result.
type World interface {
	// Cache returns the ClusterCache under test.
	Cache() clustercache.ClusterCache
	// Namespace returns the namespace of the content. The identities of all extensions have full
	// access to it.
	Namespace() string
	// Content returns a client that reads and writes the content without the Cache.
	Content() client.Client

	// Object returns the extension of that name as a controller reads it.
	Object(t *testing.T, name string) client.Object
	// Connect creates the extension of that name, if necessary, and lets it connect.
	Connect(t *testing.T, name string)
	// Disconnect makes the extension lose its connection, with reason ServiceAccountNotFound.
	Disconnect(t *testing.T, name string)
	// Delete deletes the extension.
	Delete(t *testing.T, name string)
	// Restrict leaves the extension's identity, of all permissions on ConfigMaps in Namespace, those
	// to get, list and watch objects of these names or, without names, get alone.
	Restrict(t *testing.T, name string, names ...string)
	// Permit gives back what Restrict took.
	Permit(t *testing.T, name string)
}

// Failing is a World in which probes can fail for a long time without a disconnect.
type Failing interface {
	World
	// Fail makes the probes of all extensions fail.
	Fail(t *testing.T)
	// Recover makes the probes succeed again.
	Recover(t *testing.T)
	// Long returns the duration for WatchForProbeFailure.
	Long() time.Duration
}

// Test runs the tests that hold for every ClusterCache, each in its own world.
func Test(t *testing.T, newWorld func(t *testing.T) World) {
	for name, test := range map[string]func(*testing.T, World){
		"Unknown": unknown, "Handles": handles, "Watch": watch, "WatchConflict": watchConflict,
		"WatchDependents":       watchDependents,
		"UnwatchInsideAHandler": unwatchInsideAHandler, "WatchContent": watchContent, "States": states,
		"SubscribeStates":  subscribeStates,
		"Permissions":      permissions,
		"CheckPermissions": checkPermissions,
		"ReadYourWrites":   readYourWrites,
		"WatchNamespaces":  watchNamespaces,
		"WatchLabels":      watchLabels,
		"WatchAllowed":     watchAllowed,
		"Bound":            boundToObject, "Source": extensionSource, "TypedSource": typedSource,
	} {
		t.Run(name, func(t *testing.T) { test(t, newWorld(t)) })
	}
}

func key(name string) client.ObjectKey { return client.ObjectKey{Name: name} }

func connect(t *testing.T, w World, names ...string) {
	t.Helper()
	for _, name := range names {
		w.Connect(t, name)
	}
	for _, name := range names {
		NewWithT(t).Eventually(func() error { _, err := w.Cache().GetClient(t.Context(), key(name)); return err }).
			WithTimeout(patience).Should(Succeed(), name)
	}
}

func disconnect(t *testing.T, w World, name string) {
	t.Helper()
	w.Disconnect(t, name)
	NewWithT(t).Eventually(func() clustercache.Reason {
		state, _ := w.Cache().GetConnectionState(t.Context(), key(name))
		return state.Reason
	}).WithTimeout(patience).Should(Equal(clustercache.ReasonServiceAccountNotFound))
}

func remove(t *testing.T, w World, name string) {
	t.Helper()
	w.Delete(t, name)
	NewWithT(t).
		Eventually(func() bool { _, known := w.Cache().GetConnectionState(t.Context(), key(name)); return known }).
		WithTimeout(patience).Should(BeFalse())
}

// getters returns a call of each method that needs a connection.
func getters(cc clustercache.ClusterCache, name string) map[string]func(context.Context) error {
	watcher := clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "getters",
		Kind:         &corev1.ConfigMap{},
		Watcher:      newController(),
		EventHandler: &handler.EnqueueRequestForObject{},
	})
	content := clustercache.NewContentWatch(clustercache.ContentWatchOptions{
		Name:         "content",
		Watcher:      newController(),
		EventHandler: &handler.EnqueueRequestForObject{},
	})
	return map[string]func(context.Context) error{
		"GetClient":         func(ctx context.Context) error { _, err := cc.GetClient(ctx, key(name)); return err },
		"GetReader":         func(ctx context.Context) error { _, err := cc.GetReader(ctx, key(name)); return err },
		"GetUncachedClient": func(ctx context.Context) error { _, err := cc.GetUncachedClient(ctx, key(name)); return err },
		"GetRESTConfig":     func(ctx context.Context) error { _, err := cc.GetRESTConfig(ctx, key(name)); return err },
		"GetCluster":        func(ctx context.Context) error { _, err := cc.GetCluster(ctx, key(name)); return err },
		"Watch":             func(ctx context.Context) error { return cc.Watch(ctx, key(name), watcher) },
		"WatchContent":      func(ctx context.Context) error { return cc.WatchContent(ctx, key(name), content) },
	}
}

func expectNotConnected(t *testing.T, w World, name string, reason clustercache.Reason) {
	t.Helper()
	g := NewWithT(t)
	for getter, call := range getters(w.Cache(), name) {
		err := call(t.Context())
		var notConnected *clustercache.NotConnectedError
		g.Expect(errors.As(err, &notConnected)).To(BeTrue(), "%s: %v", getter, err)
		g.Expect(err).To(MatchError(clustercache.ErrNotConnected), getter)
		g.Expect(notConnected.Extension).To(Equal(key(name)), getter)
		g.Expect(notConnected.Reason).To(Equal(reason), getter)
		g.Expect(apierrors.IsNotFound(err)).To(BeFalse(), getter)
	}
}

// An unknown extension has reason NotStarted, and every method accepts its key.
func unknown(t *testing.T, w World) {
	g := NewWithT(t)
	expectNotConnected(t, w, "unknown", clustercache.ReasonNotStarted)
	w.Cache().Unwatch(t.Context(), key("unknown"), "watch")
	g.Expect(w.Cache().GetHealthCheckingState(t.Context(), key("unknown"))).To(BeZero())
	_, known := w.Cache().GetConnectionState(t.Context(), key("unknown"))
	g.Expect(known).To(BeFalse())
}

// Handles work until their connection ends, and never after that.
func handles(t *testing.T, w World) {
	g := NewWithT(t)
	ctx := t.Context()
	connect(t, w, "red")
	cc := w.Cache()
	c, err := cc.GetClient(ctx, key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	reader, err := cc.GetReader(ctx, key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	live, err := cc.GetUncachedClient(ctx, key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	whole, err := cc.GetCluster(ctx, key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cc.GetCluster(ctx, key("red"))).To(BeIdenticalTo(whole), "one value for each connection")
	config, err := cc.GetRESTConfig(ctx, key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.BearerToken+config.Password+config.BearerTokenFile+string(config.KeyData)).
		To(BeEmpty(), "the config contains no secret")
	config.Host = "changed"
	again, err := cc.GetRESTConfig(ctx, key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.Host).NotTo(Equal("changed"), "the config is a copy")

	object := configMap(w, "written")
	g.Expect(c.Create(ctx, object)).To(Succeed())
	name := client.ObjectKeyFromObject(object)
	read := map[string]func() error{
		"client":  func() error { return c.Get(ctx, name, &corev1.ConfigMap{}) },
		"reader":  func() error { return reader.Get(ctx, name, &corev1.ConfigMap{}) },
		"live":    func() error { return live.Get(ctx, name, &corev1.ConfigMap{}) },
		"cluster": func() error { return whole.GetClient().Get(ctx, name, &corev1.ConfigMap{}) },
		"cache":   func() error { return whole.GetCache().Get(ctx, name, &corev1.ConfigMap{}) },
		"list":    func() error { return c.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(name.Namespace)) },
	}
	for handle, read := range read {
		g.Eventually(read).WithTimeout(patience).Should(Succeed(), handle)
	}
	disconnect(t, w, "red")
	expectNotConnected(t, w, "red", clustercache.ReasonServiceAccountNotFound)
	read["create"] = func() error { return c.Create(ctx, configMap(w, "other")) }
	read["update"] = func() error { return c.Update(ctx, object) }
	read["patch"] = func() error { return c.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte("{}"))) }
	read["delete"] = func() error { return c.Delete(ctx, object) }
	read["deleteAllOf"] = func() error { return c.DeleteAllOf(ctx, object, client.InNamespace(name.Namespace)) }
	read["status update"] = func() error { return c.Status().Update(ctx, object) }
	read["status patch"] = func() error {
		return c.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte("{}")))
	}
	read["subresource get"] = func() error { return c.SubResource("scale").Get(ctx, object, object.DeepCopy()) }
	read["subresource create"] = func() error { return c.SubResource("eviction").Create(ctx, object, object.DeepCopy()) }
	expectDead := func() {
		for handle, read := range read {
			g.Expect(read()).To(MatchError(clustercache.ErrNotConnected), handle)
		}
		g.Expect(whole.Start(ctx)).To(MatchError(clustercache.ErrNotConnected))
	}
	expectDead()
	connect(t, w, "red")
	expectDead()
	fresh, err := cc.GetClient(ctx, key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fresh.Get(ctx, name, &corev1.ConfigMap{})).To(Succeed())
}

func states(t *testing.T, w World) {
	g := NewWithT(t)
	ctx := t.Context()
	connect(t, w, "red", "blue")
	state, known := w.Cache().GetConnectionState(ctx, key("red"))
	g.Expect(known).To(BeTrue())
	g.Expect(state.Extension).To(Equal(key("red")))
	g.Expect(state.UID).NotTo(BeEmpty())
	g.Expect(state.Phase).To(Equal(clustercache.PhaseConnected))
	g.Expect(state.Reason).To(BeEmpty())
	g.Expect(state.Message).To(BeEmpty())
	g.Expect(state.Identity.Username).To(HavePrefix("system:serviceaccount:"))
	g.Expect(state.Target).To(HavePrefix("https://"))
	g.Expect(state.Epoch).To(BeEquivalentTo(1))
	g.Expect(state.Health.LastProbeSuccessTime).To(BeTemporally("~", time.Now(), patience))
	g.Expect(w.Cache().GetHealthCheckingState(ctx, key("red")).ConsecutiveFailures).To(BeZero())
	var names []string
	for _, state := range w.Cache().ListConnectionStates(ctx) {
		names = append(names, state.Extension.Name)
	}
	g.Expect(names).To(Equal([]string{"blue", "red"}), "sorted")

	disconnect(t, w, "red")
	state, _ = w.Cache().GetConnectionState(ctx, key("red"))
	g.Expect(state.Phase).To(Equal(clustercache.PhaseDisconnected))
	g.Expect(state.Message).NotTo(BeEmpty())
	g.Expect(state.Identity).To(BeZero())
	g.Expect(state.Epoch).To(BeEquivalentTo(1))
	_, err := w.Cache().GetClient(ctx, key("red"))
	var notConnected *clustercache.NotConnectedError
	g.Expect(errors.As(err, &notConnected)).To(BeTrue())
	g.Expect(notConnected.Since).To(BeTemporally("~", time.Now(), patience))
	g.Expect(notConnected.Err).To(HaveOccurred())
	connect(t, w, "red")
	state, _ = w.Cache().GetConnectionState(ctx, key("red"))
	g.Expect(state.Epoch).To(BeEquivalentTo(2))
}

// listener records the events of an extension source.
type listener struct {
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]

	mu     sync.Mutex
	events []string // guarded by mu
}

func listen(t *testing.T, w World, opts ...clustercache.GetExtensionSourceOption) *listener {
	t.Helper()
	l := &listener{queue: priorityqueue.New[reconcile.Request]("contract")}
	t.Cleanup(l.queue.ShutDown)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	src := w.Cache().GetExtensionSource("contract", func(ctx context.Context, extension client.Object) []ctrl.Request {
		return []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(l.note(ctx, w, extension))}}
	}, opts...)
	NewWithT(t).Expect(src.Start(ctx, l.queue)).To(Succeed())
	return l
}

func (l *listener) note(ctx context.Context, w World, extension client.Object) client.Object {
	state, known := w.Cache().GetConnectionState(ctx, client.ObjectKeyFromObject(extension))
	line := extension.GetName() + " " + string(state.Phase) + string(state.Reason)
	if !known {
		line = extension.GetName() + " gone"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, line)
	return extension
}

func (l *listener) heard() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.events...)
}

func (l *listener) last() string {
	events := l.heard()
	if len(events) == 0 {
		return ""
	}
	return events[len(events)-1]
}

// A source delivers connects, disconnects and deletions into a real queue, also if it starts late.
func extensionSource(t *testing.T, w World) {
	g := NewWithT(t)
	early := listen(t, w)
	connect(t, w, "red")
	// Wait until the event of this connect is delivered.
	g.Eventually(early.last).WithTimeout(patience).Should(Equal("red Connected"))
	late := listen(t, w)
	g.Eventually(late.heard).WithTimeout(patience).Should(Equal([]string{"red Connected"}),
		"one event per known extension")
	disconnect(t, w, "red")
	for _, l := range []*listener{early, late} {
		g.Eventually(l.last).WithTimeout(patience).Should(Equal("red DisconnectedServiceAccountNotFound"))
	}
	request, shutdown := late.queue.Get()
	g.Expect(shutdown).To(BeFalse())
	g.Expect(request).To(Equal(ctrl.Request{NamespacedName: key("red")}))
	late.queue.Done(request)
	g.Expect(late.queue.Len()).To(BeZero(), "requests for one extension are merged")
	remove(t, w, "red")
	for _, l := range []*listener{early, late} {
		g.Eventually(l.last).WithTimeout(patience).Should(Equal("red gone"), "with the object last seen")
	}
}

// typedRequest is a request of another type.
type typedRequest struct{ extension string }

func typedSource(t *testing.T, w World) {
	g := NewWithT(t)
	queue := priorityqueue.New[typedRequest]("contract")
	t.Cleanup(queue.ShutDown)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	src := clustercache.TypedExtensionSource(w.Cache(), "contract",
		func(_ context.Context, extension client.Object) []typedRequest {
			return []typedRequest{{extension.GetName()}}
		})
	g.Expect(src.Start(ctx, queue)).To(Succeed())
	connect(t, w, "red")
	request, _ := queue.Get()
	g.Expect(request).To(Equal(typedRequest{"red"}))
	g.Expect(clustercache.TypedExtensionSource[typedRequest](w.Cache(), "contract", nil).Start(ctx, queue)).
		To(MatchError(ContainSubstring("no map function")))
}

// TestProbeFailure tests that a source with WatchForProbeFailure delivers one event per episode
// without success.
func TestProbeFailure(t *testing.T, newWorld func(t *testing.T) Failing) {
	w := newWorld(t)
	g := NewWithT(t)
	first := listen(t, w)
	connect(t, w, "red")
	// Wait until the event of this connect is delivered.
	g.Eventually(first.last).WithTimeout(patience).Should(Equal("red Connected"))
	asked := listen(t, w, clustercache.WatchForProbeFailure(w.Long()))
	other := listen(t, w)
	g.Eventually(asked.heard).WithTimeout(patience).Should(HaveLen(1), "one event for the known extension")
	g.Eventually(other.heard).WithTimeout(patience).Should(HaveLen(1))
	for episode := 1; episode <= 2; episode++ {
		w.Fail(t)
		g.Eventually(asked.heard).WithTimeout(patience).Should(HaveLen(1+episode), "episode %d", episode)
		health := w.Cache().GetHealthCheckingState(t.Context(), key("red"))
		g.Expect(health.ConsecutiveFailures).To(BeNumerically(">", 0))
		g.Expect(health.LastError).To(HaveOccurred())
		w.Fail(t) // the probes still fail
		g.Consistently(asked.heard, 3*w.Long()).Should(HaveLen(1+episode), "an episode causes one event")
		g.Expect(asked.last()).To(Equal("red Connected"), "the extension stays connected")
		w.Recover(t)
		g.Eventually(func() int { return w.Cache().GetHealthCheckingState(t.Context(), key("red")).ConsecutiveFailures }).
			WithTimeout(patience).Should(BeZero())
	}
	g.Expect(other.heard()).To(HaveLen(1), "a source without WatchForProbeFailure receives no event")
}

func configMap(w World, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace(), Name: name}}
}
