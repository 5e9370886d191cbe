package fake

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/contract"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a contract.World with the fake.
type world struct {
	cache   *Cache
	content client.WithWatch
}

func newWorld(t *testing.T) *world {
	w := &world{cache: NewFakeEmptyCache(), content: clientfake.NewClientBuilder().Build()}
	t.Cleanup(w.cache.Close)
	return w
}

func key(name string) client.ObjectKey { return client.ObjectKey{Name: name} }

func (w *world) Cache() clustercache.ClusterCache  { return w.cache }
func (w *world) Namespace() string                 { return "content" }
func (w *world) Content() client.Client            { return w.content }
func (w *world) Connect(_ *testing.T, name string) { w.cache.Connect(key(name), w.content) }
func (w *world) Permit(_ *testing.T, name string) {
	w.cache.Allow(key(name), corev1.SchemeGroupVersion.WithKind("ConfigMap"), w.Namespace())
}

func (w *world) Restrict(_ *testing.T, name string, names ...string) {
	configMaps := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	if len(names) > 0 {
		w.cache.ForbidExcept(key(name), configMaps, "content", names...)
	} else {
		w.cache.ForbidListAndWatch(key(name), configMaps, "content")
	}
}
func (w *world) Delete(_ *testing.T, name string) {
	w.cache.Disconnect(key(name), clustercache.ReasonDeleted)
}
func (w *world) Object(_ *testing.T, name string) client.Object {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	object.SetName(name)
	object.SetUID("red")
	w.cache.SetExtension(object)
	return object
}
func (w *world) Fail(*testing.T)     { w.cache.FailProbe(key("red")) }
func (w *world) Recover(*testing.T)  { w.cache.PassProbe(key("red")) }
func (w *world) Long() time.Duration { return 50 * time.Millisecond }
func (w *world) Disconnect(_ *testing.T, name string) {
	w.cache.Disconnect(key(name), clustercache.ReasonServiceAccountNotFound)
}

func TestContract(t *testing.T) {
	contract.Test(t, func(t *testing.T) contract.World { return newWorld(t) })
}

func TestProbeFailure(t *testing.T) {
	contract.TestProbeFailure(t, func(t *testing.T) contract.Failing { return newWorld(t) })
}

// noController fails the test if Watch is called.
type noController struct{ t *testing.T }

func (c noController) Watch(source.Source) error {
	c.t.Error("the controller received a source")
	return nil
}

// Watches whose names were given to NewFakeCache are not registered again.
func TestPresetWatches(t *testing.T) {
	g := NewWithT(t)
	f := NewFakeCache(clientfake.NewClientBuilder().Build(), key("red"), "there", "also")
	t.Cleanup(f.Close)
	watcher := clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "there",
		Watcher:      noController{t},
		Kind:         &corev1.Secret{},
		EventHandler: &handler.EnqueueRequestForObject{},
	})
	g.Expect(f.Watch(t.Context(), key("red"), watcher)).To(Succeed())
	g.Expect(f.Watches(key("red"))).To(HaveExactElements(HaveField("Name", "also"), HaveField("Name", "there")))
	f.Unwatch(t.Context(), key("red"), "there")
	g.Expect(f.Watches(key("red"))).To(HaveExactElements(HaveField("Name", "also")))
	f.Disconnect(key("red"), clustercache.ReasonUnreachable)
	g.Expect(f.Watch(t.Context(), key("red"), watcher)).To(MatchError(clustercache.ErrNotConnected))
}

// The code under test gets the object and the identity that the test has set.
func TestWhatTheTestSays(t *testing.T) {
	g := NewWithT(t)
	f := NewFakeEmptyCache()
	t.Cleanup(f.Close)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: "uid-red"}}
	f.SetExtension(object)
	f.SetIdentity(key("red"), clustercache.Identity{Username: "alice", Groups: []string{"g"}})
	f.Disconnect(key("red"), clustercache.ReasonNotAllowed)
	_, err := f.GetClient(t.Context(), key("red"))
	g.Expect(err).To(MatchError("extension red: not connected (NotAllowed): the fake disconnected it"))
	f.Connect(key("red"), clientfake.NewClientBuilder().Build())
	state, _ := f.GetConnectionState(t.Context(), key("red"))
	g.Expect(state.UID).To(BeEquivalentTo("uid-red"))
	g.Expect(state.Identity).To(Equal(clustercache.Identity{Username: "alice", Groups: []string{"g"}}))
	g.Expect(extensionLister{&f.extensions}.Objects()).To(HaveExactElements(BeAssignableToTypeOf(&corev1.ConfigMap{})))
}

// A watch of a set of namespaces has the events of all, and the state of each. After a reconnect
// its handler hears only of what has changed.
func TestSetOfNamespaces(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	in := func(namespace string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "in-" + namespace}}
	}
	content := clientfake.NewClientBuilder().WithObjects(in("a"), in("b"), in("c")).Build()
	f := NewFakeCache(content, key("red"))
	t.Cleanup(f.Close)
	gvk := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	f.Forbid(key("red"), gvk, "b")
	events, problems := make(chan string, 100), make(chan clustercache.WatchError, 100)
	record := func(verb string) func(client.Object) {
		return func(object client.Object) { events <- verb + " " + object.GetName() }
	}
	created, deleted := record("create"), record("delete")
	g.Expect(f.Watch(ctx, key("red"), clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:    "set",
		Watcher: NewController(t),
		Kind:    &corev1.ConfigMap{},
		EventHandler: handler.Funcs{
			CreateFunc: func(_ context.Context, e event.CreateEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				created(e.Object)
			},
			DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				deleted(e.Object)
			},
		},
		Scope:   clustercache.Scope{Namespaces: scopedcache.InNamespaces("a", "b")},
		OnError: func(_ context.Context, err clustercache.WatchError) { problems <- err },
	}))).To(Succeed())
	next := func() (event string) {
		g.Eventually(events).Should(Receive(&event))
		return event
	}
	g.Expect(next()).To(Equal("create in-a"))
	g.Eventually(problems).Should(Receive(And(HaveField("Scope.Namespace", "b"),
		HaveField("State", clustercache.StateForbidden))))
	g.Eventually(problems).Should(Receive(And(HaveField("State", clustercache.StatePartial),
		HaveField("Err.Error()", HavePrefix("1 of 2 namespaces synced, 1 forbidden; b: ")))))
	f.Allow(key("red"), gvk, "b")
	g.Expect(next()).To(Equal("create in-b"))
	g.Eventually(problems).Should(Receive(And(HaveField("Scope.Namespaces", Not(BeNil())),
		HaveField("State", clustercache.StateSynced))))

	f.Disconnect(key("red"), clustercache.ReasonUnreachable)
	g.Expect(content.Delete(ctx, in("a"))).To(Succeed())
	f.Connect(key("red"), content)
	heard := []string{next(), next()}
	g.Expect(heard).To(ConsistOf("delete in-a", "create in-b"), "new informers list again")
	g.Expect(content.Delete(ctx, in("b"))).To(Succeed())
	g.Expect(next()).To(Equal("delete in-b"), "nothing else happened before")
}

// Connect ends an existing connection.
func TestConnectAgain(t *testing.T) {
	g := NewWithT(t)
	f := NewFakeCache(clientfake.NewClientBuilder().Build(), key("red"))
	t.Cleanup(f.Close)
	old, err := f.GetClient(t.Context(), key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	f.Connect(key("red"), clientfake.NewClientBuilder().Build())
	g.Expect(old.List(t.Context(), &corev1.ConfigMapList{})).To(MatchError(clustercache.ErrNotConnected))
	state, _ := f.GetConnectionState(t.Context(), key("red"))
	g.Expect(state.Epoch).To(BeEquivalentTo(2))
}

// Requests to an API server through the fake fail, because there is none.
func TestNoServer(t *testing.T) {
	g := NewWithT(t)
	f := NewFakeCache(clientfake.NewClientBuilder().Build(), key("red"))
	t.Cleanup(f.Close)
	config, err := f.GetRESTConfig(t.Context(), key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	httpClient, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = httpClient.Get(Target)
	g.Expect(err).To(MatchError(ContainSubstring("the fake has no API server")))
	whole, err := f.GetCluster(t.Context(), key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = whole.GetHTTPClient().Post(Target, "", http.NoBody)
	g.Expect(err).To(MatchError(ContainSubstring("the fake has no API server")))
	whole.GetEventRecorder("x").Eventf(&corev1.ConfigMap{}, nil, "", "", "", "")
	//nolint:staticcheck // SA1019: part of cluster.Cluster, so the method must not block
	whole.GetEventRecorderFor("x").Event(&corev1.ConfigMap{}, "", "", "")
	g.Expect(whole.GetCache().WaitForCacheSync(t.Context())).To(BeTrue())
	f.Disconnect(key("red"), clustercache.ReasonUnreachable)
	_, err = httpClient.Get(Target)
	g.Expect(err).To(MatchError(clustercache.ErrNotConnected))
}

// Informers of the fake's cluster receive changes.
func TestInformer(t *testing.T) {
	g := NewWithT(t)
	c := clientfake.NewClientBuilder().Build()
	f := NewFakeCache(c, key("red"))
	t.Cleanup(f.Close)
	whole, err := f.GetCluster(t.Context(), key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	informer, err := whole.GetCache().GetInformerForKind(t.Context(), corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	g.Expect(err).NotTo(HaveOccurred())
	received := make(chan string, 10)
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		received <- object.(client.Object).GetName()
	}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a"}})).
		To(Succeed())
	g.Eventually(received).Should(Receive(Equal("a")))
}

// With a client that cannot watch, handlers receive the existing objects.
func TestClientWithoutWatch(t *testing.T) {
	g := NewWithT(t)
	existing := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "there"}}
	f := NewFakeCache(struct{ client.Client }{clientfake.NewClientBuilder().WithObjects(existing).Build()}, key("red"))
	t.Cleanup(f.Close)
	received := make(chan string, 10)
	g.Expect(f.Watch(t.Context(), key("red"), clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:    "watch",
		Watcher: startingController{t.Context()},
		Kind:    &corev1.ConfigMap{},
		EventHandler: handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []ctrl.Request {
			received <- object.GetName()
			return nil
		}),
	}))).To(Succeed())
	g.Eventually(received).Should(Receive(Equal("there")))
}

type startingController struct{ ctx context.Context }

func (s startingController) Watch(src source.Source) error { return src.Start(s.ctx, nil) }

// Concurrent connects and reads leave at most one connection open, and nothing runs after Close.
func TestConcurrentUse(t *testing.T) {
	g := NewWithT(t)
	f := NewFakeEmptyCache()
	c := clientfake.NewClientBuilder().Build()
	var mu sync.Mutex
	var clients []client.Client
	var running sync.WaitGroup
	for range 20 {
		running.Go(func() {
			f.Connect(key("red"), c)
			if got, err := f.GetClient(t.Context(), key("red")); err == nil {
				mu.Lock()
				clients = append(clients, got)
				mu.Unlock()
			}
			_ = f.Watch(t.Context(), key("red"), clustercache.NewWatcher(clustercache.WatcherOptions{
				Name: "watch",
				Watcher: startingController{
					t.Context(),
				},
				Kind:         &corev1.ConfigMap{},
				EventHandler: &handler.Funcs{},
			}))
			f.Unwatch(t.Context(), key("red"), "watch")
			_ = f.Watches(key("red"))
		})
	}
	running.Wait()
	f.Close()
	for _, c := range clients {
		g.Expect(c.List(t.Context(), &corev1.ConfigMapList{})).To(MatchError(clustercache.ErrNotConnected))
	}
}

// OnError receives the client's Forbidden error, and then the recovery.
func TestOnError(t *testing.T) {
	g := NewWithT(t)
	var denied atomic.Bool
	denied.Store(true)
	c := interceptor.NewClient(clientfake.NewClientBuilder().Build(),
		interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList,
			opts ...client.ListOption) error {
			if denied.Load() {
				return apierrors.NewForbidden(corev1.Resource("configmaps"), "", nil)
			}
			return c.List(ctx, list, opts...)
		}})
	f := NewFakeCache(c, key("red"))
	t.Cleanup(f.Close)
	received := make(chan clustercache.WatchError, 10)
	g.Expect(f.Watch(t.Context(), key("red"), clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "watch",
		Watcher:      startingController{t.Context()},
		Kind:         &corev1.ConfigMap{},
		EventHandler: &handler.Funcs{},
		OnError:      func(_ context.Context, err clustercache.WatchError) { received <- err },
	}))).To(Succeed(), "Watch does not wait for the first objects")
	var err clustercache.WatchError
	g.Eventually(received).Should(Receive(&err))
	g.Expect(apierrors.IsForbidden(err.Err)).To(BeTrue())
	denied.Store(false)
	g.Eventually(received, 30*time.Second).Should(Receive(HaveField("Err", BeNil())))
}

// A nil client is the caller's mistake, and every call returns an error about it.
func TestNilClient(t *testing.T) {
	g := NewWithT(t)
	key := client.ObjectKey{Name: "red"}
	cc := NewFakeCache(nil, key)
	_, err := cc.GetClient(t.Context(), key)
	g.Expect(err).To(MatchError(clustercache.ErrNotConnected))
	g.Expect(err).To(MatchError(ContainSubstring("a nil client")))
	_, err = cc.GetRESTConfig(t.Context(), key)
	g.Expect(err).To(MatchError(ContainSubstring("a nil client")))
	cc.Unwatch(t.Context(), key, "w")
	cc.Connect(key, clientfake.NewClientBuilder().Build())
	_, err = cc.GetClient(t.Context(), key)
	g.Expect(err).NotTo(HaveOccurred())
}

// A Controller records what sources and watches enqueue.
func TestController(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := NewController(t)
	g.Expect(c.Requests()).To(BeEmpty())
	g.Expect(c.Watch(w.cache.GetExtensionSource("test", clustercache.EnqueueExtension))).To(Succeed())
	w.cache.ConnectAs(key("red"), w.content, clustercache.Identity{Username: "ann"})
	red := ctrl.Request{NamespacedName: key("red")}
	g.Expect(c.Next(ctx)).To(Equal(red))
	state, _ := w.cache.GetConnectionState(ctx, key("red"))
	g.Expect(state.Identity.Username).To(Equal("ann"))

	watcher := clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "w",
		Watcher:      c,
		Kind:         &corev1.ConfigMap{},
		EventHandler: clustercache.EnqueueFor(key("blue")),
	})
	g.Expect(w.cache.Watch(ctx, key("red"), watcher)).To(Succeed())
	g.Expect(w.content.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x"}})).
		To(Succeed())
	g.Expect(c.Next(ctx)).To(Equal(ctrl.Request{NamespacedName: key("blue")}))

	w.cache.Disconnect(key("red"), clustercache.ReasonUnreachable)
	g.Eventually(c.Requests).WithTimeout(time.Minute).Should(Equal([]ctrl.Request{red}))
	g.Expect(c.Requests()).To(BeEmpty(), "each request is returned once")
	cancel()
	_, err := c.Next(ctx)
	g.Expect(err).To(MatchError(context.Canceled))
}

// Forbid takes a permission to read, and Allow gives it back: reads, watches, OnError and the
// sources behave as with a real API server.
func TestForbid(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	configMaps := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	object := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	}
	g.Expect(w.content.Create(ctx, object("kept"))).To(Succeed())
	g.Expect(w.content.Create(ctx, object("removed"))).To(Succeed())
	w.cache.Connect(key("red"), w.content)
	c, err := w.cache.GetClient(ctx, key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	states := make(chan clustercache.WatchError, 10)
	events := make(chan string, 10)
	controller := NewController(t)
	watch := func(name, namespace string) error {
		return w.cache.Watch(ctx, key("red"), clustercache.NewWatcher(clustercache.WatcherOptions{
			Name:    name,
			Watcher: controller,
			Kind:    &corev1.ConfigMap{},
			Scope:   clustercache.Scope{Namespace: namespace},
			EventHandler: handler.Funcs{
				CreateFunc: func(_ context.Context, e event.CreateEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
					events <- name + " create " + e.Object.GetName()
				},
				DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
					events <- name + " delete " + e.Object.GetName()
				},
			},
			OnError: func(_ context.Context, err clustercache.WatchError) { states <- err },
		}))
	}
	g.Expect(watch("w", "ns")).To(Succeed())
	g.Expect([]string{<-events, <-events}).To(ConsistOf("w create kept", "w create removed"))
	g.Expect(controller.Watch(w.cache.GetExtensionSource("test", clustercache.EnqueueExtension))).To(Succeed())
	red := ctrl.Request{NamespacedName: key("red")}
	g.Expect(controller.Next(ctx)).To(Equal(red))

	w.cache.Forbid(key("red"), configMaps, "ns")
	g.Expect(controller.Next(ctx)).To(Equal(red))
	denied := <-states
	g.Expect(denied.State).To(Equal(clustercache.StateForbidden))
	g.Expect(apierrors.IsForbidden(denied.Err)).To(BeTrue())
	for what, err := range map[string]error{
		"get":      c.Get(ctx, client.ObjectKeyFromObject(object("kept")), &corev1.ConfigMap{}),
		"list":     c.List(ctx, &corev1.ConfigMapList{}, client.InNamespace("ns")),
		"list all": c.List(ctx, &corev1.ConfigMapList{}),
	} {
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s: %v", what, err)
		g.Expect(err).To(MatchError(ContainSubstring(`User "system:serviceaccount:fake:red" cannot`)), what)
	}
	g.Expect(c.List(ctx, &corev1.ConfigMapList{}, client.InNamespace("other"))).To(Succeed())
	g.Expect(c.List(ctx, &corev1.SecretList{})).To(Succeed())
	g.Expect(c.Create(ctx, object("added"))).To(Succeed(), "writes are not affected")
	g.Expect(w.content.Delete(ctx, object("removed"))).To(Succeed())
	g.Expect(watch("late", "ns")).To(Succeed(), "a watch waits for the permission")
	g.Expect((<-states).State).To(Equal(clustercache.StateForbidden))
	w.cache.Forbid(key("red"), configMaps, "ns") // again, which changes nothing
	g.Expect(events).To(BeEmpty(), "a revocation is no deletion")

	state, _ := w.cache.GetConnectionState(ctx, key("red"))
	g.Expect(state.Scopes).To(HaveLen(2), "one for each watch")
	g.Expect(state.Scopes).To(HaveEach(And(HaveField("State", clustercache.StateForbidden), HaveField("GVK", configMaps),
		HaveField("Scope.Namespace", "ns"), HaveField("LastError", Satisfy(apierrors.IsForbidden)))))

	w.cache.Allow(key("red"), configMaps, "ns")
	g.Expect(controller.Next(ctx)).To(Equal(red))
	g.Expect([]string{<-events, <-events, <-events, <-events, <-events}).To(ConsistOf("w create kept", "w create added",
		"w delete removed", "late create kept", "late create added"))
	g.Expect([]any{(<-states).State, (<-states).State}).To(HaveEach(clustercache.StateSynced))
	g.Expect(c.List(ctx, &corev1.ConfigMapList{})).To(Succeed())
	g.Expect(controller.Requests()).To(BeEmpty(), "one event per change")

	w.cache.Forbid(key("red"), configMaps, "")
	g.Expect(apierrors.IsForbidden(c.List(ctx, &corev1.ConfigMapList{}, client.InNamespace("other")))).To(BeTrue())
	w.cache.Connect(key("red"), w.content)
	c, err = w.cache.GetClient(ctx, key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(apierrors.IsForbidden(c.List(ctx, &corev1.ConfigMapList{}))).To(BeTrue(), "a reconnect grants nothing")
	whole, err := w.cache.GetCluster(ctx, key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = whole.GetCache().GetInformer(ctx, &corev1.ConfigMap{})
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
}
