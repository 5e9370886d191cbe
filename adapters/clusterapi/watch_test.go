package clusterapi

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	latchkey "github.com/latchkey-dev/latchkey/clustercache"
	latchkeyfake "github.com/latchkey-dev/latchkey/fake"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// starter starts sources as a controller does, and counts them and the events of ConfigMaps.
type starter struct {
	ctx        context.Context //nolint:containedctx // a controller's
	queue      workqueue.TypedRateLimitingInterface[ctrl.Request]
	started    atomic.Int32
	fails      atomic.Bool
	hold       chan struct{} // closed when Watch may return; nil for at once
	holding    chan struct{} // receives when Watch waits for hold
	startLater bool          // the test starts the sources

	mu      sync.Mutex
	sources []source.Source
	events  map[string]int // guarded by mu; creations and deletions by name
}

func newStarter(t *testing.T) *starter {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		queue.ShutDown()
	})
	return &starter{ctx: ctx, queue: queue, events: map[string]int{}}
}

func (s *starter) Watch(src source.Source) error {
	if s.hold != nil {
		s.holding <- struct{}{}
		<-s.hold
	}
	if s.fails.Load() {
		return errors.New("the controller has failed")
	}
	s.started.Add(1)
	s.mu.Lock()
	s.sources = append(s.sources, src)
	s.mu.Unlock()
	if s.startLater {
		return nil
	}
	return src.Start(s.ctx, s.queue)
}

func (s *starter) count(what string) func(context.Context, client.Object) {
	return func(_ context.Context, object client.Object) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events[what+" "+object.GetName()]++
	}
}

func (s *starter) seen(event string) func() int {
	return func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.events[event]
	}
}

// watcherOptions are of a watch of ConfigMaps.
func watcherOptions(s *starter) WatcherOptions {
	type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]
	return WatcherOptions{
		Name:    "w",
		Watcher: s,
		Kind:    &corev1.ConfigMap{},
		EventHandler: handler.Funcs{
			CreateFunc: func(ctx context.Context, e event.CreateEvent, _ queue) { s.count("create")(ctx, e.Object) },
			DeleteFunc: func(ctx context.Context, e event.DeleteEvent, _ queue) { s.count("delete")(ctx, e.Object) },
		},
	}
}

// A name is watched once in each connection, and again in the next one, when Watch is called again.
func TestWatch(t *testing.T) {
	testenv.SkipIfShort(t)
	g := NewWithT(t)
	namespace := newNamespace(t)
	clusters := start(t, namespace, Options{})
	key := provisioned(t, clusters, namespace, "red", newUser(t, namespace))
	s := newStarter(t)
	watch := func() error { return clusters.Watch(t.Context(), key, NewWatcher(watcherOptions(s))) }
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			if err := watch(); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	g.Expect(s.started.Load()).To(BeEquivalentTo(1))
	first, second := namespace+"-1", namespace+"-2"
	g.Expect(admin(t).Create(t.Context(), configMap(first))).To(Succeed())
	g.Eventually(s.seen("create " + first)).WithTimeout(testenv.Patience).Should(Equal(1))

	secret := kubeconfigSecret(key, nil)
	g.Expect(admin(t).Get(t.Context(), client.ObjectKeyFromObject(secret), secret)).To(Succeed())
	g.Expect(admin(t).Delete(t.Context(), secret)).To(Succeed())
	notConnected(t, clusters, key, latchkey.ReasonInvalidCredential)
	g.Expect(watch()).To(MatchError(ErrClusterNotConnected))
	g.Eventually(func() int {
		w := &clusters.(*clusterCache).watches
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.connected)
	}).WithTimeout(testenv.Patience).Should(BeZero(), "nothing is kept of the connection")

	g.Expect(admin(t).Create(t.Context(), kubeconfigSecret(key, secret.Data["value"]))).To(Succeed())
	connected(t, clusters, key)
	g.Expect(watch()).To(Succeed())
	g.Expect(watch()).To(Succeed())
	g.Expect(s.started.Load()).To(BeEquivalentTo(2), "once more, because the connection is another one")
	g.Eventually(s.seen("create "+first)).WithTimeout(testenv.Patience).Should(Equal(2), "all are new to it")
	g.Expect(admin(t).Create(t.Context(), configMap(second))).To(Succeed())
	g.Expect(admin(t).Delete(t.Context(), configMap(first))).To(Succeed())
	g.Eventually(s.seen("delete " + first)).WithTimeout(testenv.Patience).Should(Equal(1))
	g.Consistently(s.seen("create "+second)).Should(Equal(1), "the watch of the earlier connection has ended")
}

// A watch is added to a connection that follows at once, before it is known that the earlier one
// has ended.
func TestWatchOfTheNextConnection(t *testing.T) {
	g := NewWithT(t)
	key := client.ObjectKey{Namespace: "n", Name: "red"}
	workload := fake.NewFakeClient(configMap("one"))
	connections := latchkeyfake.NewFakeCache(workload, key)
	clusters := &clusterCache{connections: connections}
	s := newStarter(t)
	for n := range 3 {
		g.Expect(clusters.Watch(t.Context(), key, NewWatcher(watcherOptions(s)))).To(Succeed())
		g.Expect(clusters.Watch(t.Context(), key, NewWatcher(watcherOptions(s)))).To(Succeed())
		g.Expect(s.started.Load()).To(BeEquivalentTo(n + 1))
		g.Eventually(s.seen("create one")).Should(Equal(n + 1))
		connections.Connect(key, workload)
	}
}

// The sources of a connection that ends have nothing to wait for any more, whether or not they had
// an informer.
func TestWatchEndsWithConnection(t *testing.T) {
	testenv.SkipIfShort(t)
	g := NewWithT(t)
	namespace := newNamespace(t)
	clusters := start(t, namespace, Options{})
	key := provisioned(t, clusters, namespace, "red", newUser(t, namespace))
	s := newStarter(t)
	for name, kind := range map[string]client.Object{"nodes": &corev1.Node{}, "configmaps": &corev1.ConfigMap{}} {
		options := watcherOptions(s)
		options.Name, options.Kind = name, kind // the user may not list nodes
		g.Expect(clusters.Watch(t.Context(), key, NewWatcher(options))).To(Succeed())
	}
	late := newStarter(t)
	late.startLater = true // as a controller that starts after the connection has ended
	g.Expect(clusters.Watch(t.Context(), key, NewWatcher(WatcherOptions{
		Name:         "late",
		Watcher:      late,
		Kind:         &corev1.ConfigMap{},
		EventHandler: handler.Funcs{},
	}))).To(Succeed())
	g.Expect(admin(t).Delete(t.Context(), kubeconfigSecret(key, nil))).To(Succeed())
	notConnected(t, clusters, key, latchkey.ReasonInvalidCredential)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	for _, src := range late.sources {
		g.Expect(src.Start(late.ctx, late.queue)).To(Succeed())
	}
	for _, src := range append(s.sources, late.sources...) {
		_ = src.(source.SyncingSource).WaitForSync(ctx)
		g.Expect(ctx.Err()).NotTo(HaveOccurred(), "%s waits", src)
	}
}

// A watcher that fails is asked again, and one that hangs delays no other name and no getter.
func TestWatcherFails(t *testing.T) {
	g := NewWithT(t)
	key := client.ObjectKey{Namespace: "n", Name: "red"}
	clusters := NewFakeClusterCache(fake.NewFakeClient(), key)
	s := newStarter(t)
	s.fails.Store(true)
	watch := func() error { return clusters.Watch(t.Context(), key, NewWatcher(watcherOptions(s))) }
	g.Expect(watch()).To(MatchError("error creating watch w for *v1.ConfigMap: the controller has failed"))
	s.fails.Store(false)
	g.Expect(watch()).To(Succeed())
	g.Expect(watch()).To(Succeed())
	g.Expect(s.started.Load()).To(BeEquivalentTo(1))

	hung, other := newStarter(t), newStarter(t)
	hung.hold, hung.holding = make(chan struct{}), make(chan struct{})
	hanging := watcherOptions(hung)
	hanging.Name = "hung"
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if err := clusters.Watch(t.Context(), key, NewWatcher(hanging)); err != nil {
			t.Error(err)
		}
	})
	<-hung.holding
	_, err := clusters.GetClient(t.Context(), key)
	g.Expect(err).NotTo(HaveOccurred())
	options := watcherOptions(other)
	options.Name = "other"
	g.Expect(clusters.Watch(t.Context(), key, NewWatcher(options))).To(Succeed())
	close(hung.hold)
	waiting.Wait()
	options.Name = ""
	g.Expect(clusters.Watch(t.Context(), key, NewWatcher(options))).To(MatchError("watcher.Name() cannot be empty"))
}

// ownWatcher is a provider's own Watcher, which gets the connection's cache.
type ownWatcher struct{ got cache.Cache }

func (*ownWatcher) Name() string          { return "own" }
func (*ownWatcher) Object() client.Object { return &corev1.ConfigMap{} }
func (w *ownWatcher) Watch(c cache.Cache) error {
	w.got = c
	return nil
}

func TestOwnWatcher(t *testing.T) {
	g := NewWithT(t)
	key := client.ObjectKey{Namespace: "n", Name: "red"}
	clusters := NewFakeClusterCache(fake.NewFakeClient(configMap("c")), key)
	w := &ownWatcher{}
	g.Expect(clusters.Watch(t.Context(), key, w)).To(Succeed())
	g.Expect(w.got.Get(t.Context(), client.ObjectKeyFromObject(configMap("c")), &corev1.ConfigMap{})).To(Succeed())
}

// Each duration has a source, because one source of latchkey has one duration.
func TestClusterSource(t *testing.T) {
	g := NewWithT(t)
	key := client.ObjectKey{Namespace: "n", Name: "red"}
	clusters := NewFakeClusterCache(fake.NewFakeClient(), key)
	s := newStarter(t)
	mapped := make(chan client.Object, 100)
	mapFunc := func(_ context.Context, cluster client.Object) []ctrl.Request {
		mapped <- cluster
		return []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(cluster)}}
	}
	for _, opts := range [][]GetClusterSourceOption{
		nil,
		{WatchForProbeFailure(time.Minute)},
		{WatchForProbeFailure(time.Minute), WatchForProbeFailure(time.Hour)},
	} {
		src := clusters.GetClusterSource("c", mapFunc, opts...)
		g.Expect(fmt.Sprint(src)).To(ContainSubstring("c"))
		g.Expect(src.Start(s.ctx, s.queue)).To(Succeed())
		for range max(1, len(opts)) {
			g.Eventually(mapped).Should(Receive(HaveField("Name", "red")))
		}
	}
	g.Eventually(s.queue.Len).Should(Equal(1), "of equal requests there is one")

	stub := &stubConnections{}
	(&clusterCache{connections: stub}).GetClusterSource("c", mapFunc, WatchForProbeFailure(time.Minute),
		WatchForProbeFailure(time.Hour))
	g.Expect(stub.durations).To(Equal([]time.Duration{time.Minute, time.Hour}))

	err := clusters.GetClusterSource("c", mapFunc, unknownOption{}).Start(s.ctx, s.queue)
	g.Expect(err).To(MatchError(ContainSubstring("unknownOption is not supported")))
}

type unknownOption struct{}

func (unknownOption) ApplyToGetClusterSourceOptions(*GetClusterSourceOptions) {}

// stubConnections notes the durations of the sources.
type stubConnections struct {
	latchkey.ClusterCache
	durations []time.Duration
}

func (s *stubConnections) GetExtensionSource(_ string, _ handler.MapFunc,
	opts ...latchkey.GetExtensionSourceOption) source.Source {
	var options latchkey.GetExtensionSourceOptions
	for _, opt := range opts {
		opt.ApplyToGetExtensionSource(&options)
	}
	s.durations = append(s.durations, options.ProbeFailure)
	return nil
}

// The fake is connected with the test's client, and its watches deliver what that client writes.
func TestFake(t *testing.T) {
	g := NewWithT(t)
	key := client.ObjectKey{Namespace: "n", Name: "red"}
	workload := fake.NewFakeClient()
	clusters := NewFakeClusterCache(workload, key, "w")
	c, err := clusters.GetClient(t.Context(), key)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.Create(t.Context(), configMap("one"))).To(Succeed())
	g.Expect(workload.Get(t.Context(), client.ObjectKeyFromObject(configMap("one")), &corev1.ConfigMap{})).To(Succeed())
	g.Expect(clusters.GetHealthCheckingState(t.Context(), key).LastProbeSuccessTime).
		To(BeTemporally("~", time.Now(), time.Minute))
	s := newStarter(t)
	g.Expect(clusters.Watch(t.Context(), key, NewWatcher(watcherOptions(s)))).To(Succeed())
	g.Expect(s.started.Load()).To(BeZero(), "the name was given to the constructor")
	options := watcherOptions(s)
	options.Name = "another"
	g.Expect(clusters.Watch(t.Context(), key, NewWatcher(options))).To(Succeed())
	g.Eventually(s.seen("create one")).Should(Equal(1))
	_, err = clusters.GetClient(t.Context(), client.ObjectKey{Namespace: "n", Name: "unknown"})
	g.Expect(err).To(MatchError(ErrClusterNotConnected))
}

// A handler of a provider's own Watcher can be removed.
func TestRemoveEventHandler(t *testing.T) {
	g := NewWithT(t)
	key := client.ObjectKey{Namespace: "n", Name: "red"}
	workload := fake.NewFakeClient(configMap("one"))
	connections := latchkeyfake.NewFakeCache(workload, key)
	clusters := &clusterCache{connections: connections}
	w := &ownWatcher{}
	g.Expect(clusters.Watch(t.Context(), key, w)).To(Succeed())
	informer, err := w.got.GetInformer(t.Context(), &corev1.ConfigMap{})
	g.Expect(err).NotTo(HaveOccurred())
	var added atomic.Int32
	count := toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { added.Add(1) }}
	first, err := informer.AddEventHandler(count)
	g.Expect(err).NotTo(HaveOccurred())
	second, err := informer.AddEventHandlerWithResyncPeriod(count, time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(added.Load).Should(BeEquivalentTo(2))
	g.Expect(informer.RemoveEventHandler(first)).To(Succeed())
	g.Expect(workload.Create(t.Context(), configMap("two"))).To(Succeed())
	g.Eventually(added.Load).Should(BeEquivalentTo(3))
	g.Consistently(added.Load).WithTimeout(100 * time.Millisecond).Should(BeEquivalentTo(3))
	g.Expect(second.HasSynced()).To(BeTrue())

	connections.Disconnect(key, latchkey.ReasonUnreachable)
	stopped, err := w.got.GetInformerForKind(t.Context(), corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stopped.IsStopped()).To(BeTrue())
	handle, err := stopped.AddEventHandler(count)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stopped.RemoveEventHandler(handle)).To(Succeed())
}
