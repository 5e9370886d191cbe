package e2e

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// fakeController is a started controller with a real queue, from which no worker takes requests.
// The controller records the events that its handlers receive.
type fakeController struct {
	ctx   context.Context
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	close func()

	mu     sync.Mutex
	events []string // guarded by mu
}

func newFakeController(t *testing.T) *fakeController {
	c := &fakeController{ctx: t.Context(), queue: priorityqueue.New[reconcile.Request]("test")}
	c.close = sync.OnceFunc(c.queue.ShutDown)
	t.Cleanup(c.close)
	return c
}

func (c *fakeController) Watch(src source.Source) error { return src.Start(c.ctx, c.queue) }

func (c *fakeController) note(verb string, object client.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, verb+" "+object.GetName())
	object.SetName("handlers get copies") // and may therefore change them
}

func (c *fakeController) seen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.events...)
}

func (c *fakeController) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = nil
}

func (c *fakeController) watch(name string, kind client.Object, namespace string) clustercache.WatcherOptions {
	return clustercache.WatcherOptions{
		Name:    name,
		Watcher: c,
		Kind:    kind,
		Scope:   clustercache.Scope{Namespace: namespace},
		EventHandler: handler.Funcs{
			CreateFunc: func(_ context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[ctrl.Request]) {
				q.Add(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)})
				c.note("create", e.Object)
			},
			UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
				c.note("update", e.ObjectNew)
			},
			DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
				c.note("delete", e.Object)
			},
		},
	}
}

func configMap(namespace, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// metadataOf returns an object for a watch of only the metadata of a kind.
func metadataOf(kind string) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	return object
}

func TestWatch(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "watcher")
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "watcher")
	c := newFakeController(t)
	ctx := t.Context()

	watch := clustercache.NewWatcher(c.watch("content", metadataOf("ConfigMap"), ns))
	g.Expect(o.Watch(ctx, key("watcher"), watch)).To(Succeed())
	g.Expect(o.Watch(ctx, key("watcher"), watch)).To(Succeed(), "an identical second call is a no-op")
	g.Expect(o.Watch(ctx, key("watcher"), clustercache.NewWatcher(c.watch("content", &corev1.Secret{}, ns)))).
		To(MatchError(clustercache.ErrWatchConflict))
	g.Expect(o.Watch(ctx, key("watcher"), clustercache.NewWatcher(c.watch("content", metadataOf("ConfigMap"), "")))).
		To(MatchError(clustercache.ErrWatchConflict))

	create(t, configMap(ns, "a"))
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create a"))
	// RemoveInformer of another caller does not stop an informer that a watch uses.
	whole, err := o.GetCluster(ctx, key("watcher"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(whole.GetCache().RemoveInformer(ctx, metadataOf("ConfigMap"))).To(Succeed())
	create(t, configMap(ns, "b"))
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create b"))
	// After a reconnect the watch resumes by itself.
	g.Expect(admin.Delete(ctx, serviceAccount(ns, "watcher"))).To(Succeed())
	o.waitReason(t, "watcher", clustercache.ReasonServiceAccountNotFound)
	g.Expect(o.state("watcher").Watches).To(HaveLen(1), "the watch stays registered")
	c.forget()
	create(t, configMap(ns, "while-down"))
	create(t, serviceAccount(ns, "watcher"))
	o.waitConnected(t, "watcher")
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElements("create a", "create while-down"))
	count := 0
	for _, e := range c.seen() {
		if e == "create while-down" {
			count++
		}
	}
	g.Expect(count).To(Equal(1), "the watch was registered once")

	// Unwatch ends the watch. Another watch proves that events still arrive.
	o.Unwatch(ctx, key("watcher"), "content")
	o.Unwatch(ctx, key("watcher"), "content")
	g.Expect(o.state("watcher").Watches).To(BeEmpty())
	c.forget()
	other := newFakeController(t)
	g.Expect(o.Watch(ctx, key("watcher"), clustercache.NewWatcher(other.watch("other", metadataOf("ConfigMap"), ns)))).
		To(Succeed())
	create(t, configMap(ns, "after"))
	g.Eventually(other.seen).WithTimeout(patience).Should(ContainElement("create after"))
	g.Expect(c.seen()).To(BeEmpty())
}

// TestWatchOfAKindThatIsNotServed checks that a watch waits for a kind that is not served. OnError
// is notified of the missing kind, and again when the kind is served. The controller then receives
// the events.
func TestWatchOfAKindThatIsNotServed(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	create(t, serviceAccount(ns, "watcher"))
	grant(t, ns, "watcher",
		rbacv1.PolicyRule{APIGroups: []string{"late.example.test"}, Resources: []string{"*"}, Verbs: []string{"*"}})
	create(t, extension(ns, "watcher"))
	late := func(name string) *unstructured.Unstructured {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(schema.GroupVersionKind{Group: "late.example.test", Version: "v1", Kind: "Comer"})
		object.SetNamespace(ns)
		object.SetName(name)
		return object
	}
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "watcher")
	c := newFakeController(t)
	watchErrors := make(chan clustercache.WatchError, 100)
	options := c.watch("comers", late(""), ns)
	options.OnError = func(_ context.Context, err clustercache.WatchError) { watchErrors <- err }
	g.Expect(o.Watch(t.Context(), key("watcher"), clustercache.NewWatcher(options))).To(Succeed())
	var missing clustercache.WatchError
	g.Eventually(watchErrors).WithTimeout(patience).Should(Receive(&missing))
	g.Expect(missing.State).To(Equal(scopedcache.StateNotServed))
	g.Expect(missing.Err).To(Satisfy(isNoMatch))
	g.Expect(o.state("watcher").Scopes).
		To(
			HaveExactElements(And(HaveField("State", scopedcache.StateNotServed), HaveField("GVK.Kind", "Comer"),
				HaveField("Dependents", []string{"comers"}))))

	create(t, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{
			"name": "comers.late.example.test",
		},
		"spec": map[string]any{"group": "late.example.test", "scope": "Namespaced",
			"names": map[string]any{"plural": "comers", "singular": "comer", "kind": "Comer"},
			"versions": []any{
				map[string]any{"name": "v1", "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}},
			}},
	}})
	g.Eventually(watchErrors).WithTimeout(patience).Should(Receive(HaveField("State", scopedcache.StateSynced)))
	g.Eventually(func() error { return client.IgnoreAlreadyExists(admin.Create(t.Context(), late("late"))) }).
		WithTimeout(patience).Should(Succeed())
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create late"))
}

// TestWatchDependents checks that a watch stays registered as long as it has a dependent.
func TestWatchDependents(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "watcher")
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "watcher")
	c := newFakeController(t)
	for _, dependent := range []types.UID{"b", "a", "b"} {
		options := c.watch("content", &corev1.ConfigMap{}, ns)
		options.Dependent = dependent
		g.Expect(o.Watch(t.Context(), key("watcher"), clustercache.NewWatcher(options))).To(Succeed())
	}
	dependents := func() []types.UID { return o.state("watcher").Watches[0].Dependents }
	g.Expect(dependents()).To(Equal([]types.UID{"a", "b"}))
	o.Unwatch(t.Context(), key("watcher"), "content", "b", "unknown")
	g.Expect(dependents()).To(Equal([]types.UID{"a"}))
	o.Unwatch(t.Context(), key("watcher"), "content", "a")
	g.Expect(o.state("watcher").Watches).To(BeEmpty())
}

// TestUnwatchInsideAHandler checks that a handler may end its own watch.
func TestUnwatchInsideAHandler(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "watcher")
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "watcher")
	c := newFakeController(t)
	options := c.watch("once", &corev1.ConfigMap{}, ns)
	inner := options.EventHandler.(handler.Funcs)
	create := inner.CreateFunc
	inner.CreateFunc = func(ctx context.Context, e event.CreateEvent,
		q workqueue.TypedRateLimitingInterface[ctrl.Request]) {
		o.Unwatch(ctx, key("watcher"), "once")
		create(ctx, e, q)
	}
	options.EventHandler = inner
	createConfigMaps(t, ns, "x", "y", "z")
	g.Expect(o.Watch(t.Context(), key("watcher"), clustercache.NewWatcher(options))).To(Succeed())
	g.Eventually(c.seen).WithTimeout(patience).Should(HaveLen(1))
	g.Expect(o.state("watcher").Watches).To(BeEmpty())
	g.Consistently(c.seen).Should(HaveLen(1))
}

func createConfigMaps(t *testing.T, namespace string, names ...string) {
	for _, name := range names {
		create(t, configMap(namespace, name))
	}
}

// contentOf returns a content watch that records the events that it receives.
func (c *fakeController) contentOf(name string, objects ...client.Object) clustercache.ContentWatch {
	return clustercache.NewContentWatch(clustercache.ContentWatchOptions{
		Name:         name,
		Watcher:      c,
		Objects:      objects,
		EventHandler: c.watch(name, nil, "").EventHandler,
	})
}

// kinds returns the kinds that the extension watches, each with its namespace.
func (o *operator) kinds(name string) (kinds []string) {
	for _, w := range o.state(name).Watches {
		kinds = append(kinds, w.Kind.Kind+"/"+w.Scope.Namespace)
	}
	return kinds
}

// TestWatchContent checks that exactly the kinds of the content are watched, in the namespace of
// the content. Permissions in that namespace suffice.
func TestWatchContent(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns := namespace(t)
	tenant(t, ns, "owner")
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "owner")
	c := newFakeController(t)

	g.Expect(o.WatchContent(ctx, key("owner"),
		c.contentOf("content", configMap(ns, "a"), configMap(ns, "b"),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "s"}}))).To(Succeed())
	g.Expect(o.kinds("owner")).To(Equal([]string{"ConfigMap/" + ns, "Secret/" + ns}))
	createConfigMaps(t, ns, "a")
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "s"}})
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElements("create a", "create s"))

	// The watch waits for a kind that is not served, and watches the others. A kind that is no
	// longer in the content is not watched.
	missing := gadget()
	missing.SetNamespace(ns)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "svc"}}
	g.Expect(o.WatchContent(ctx, key("owner"), c.contentOf("content", configMap(ns, "a"), service, missing))).
		To(Succeed())
	g.Expect(o.kinds("owner")).To(Equal([]string{"ConfigMap/" + ns, "Service/" + ns, "Gadget/" + ns}))
	g.Eventually(func() int { return watchesOf(t, "secrets", ns) }).WithTimeout(patience).
		Should(BeZero(), "the informer of Secrets has stopped")
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "left"}})
	createConfigMaps(t, ns, "b")
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create b"))
	g.Expect(c.seen()).NotTo(ContainElement("create left"))

	// The content watch resumes by itself after a reconnect.
	g.Expect(admin.Delete(ctx, serviceAccount(ns, "owner"))).To(Succeed())
	o.waitReason(t, "owner", clustercache.ReasonServiceAccountNotFound)
	g.Expect(o.WatchContent(ctx, key("owner"), c.contentOf("content"))).To(MatchError(clustercache.ErrNotConnected))
	g.Expect(o.kinds("owner")).To(HaveLen(3), "the failed call changes nothing")
	c.forget()
	create(t, serviceAccount(ns, "owner"))
	o.waitConnected(t, "owner")
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElements("create a", "create b"))

	o.Unwatch(ctx, key("owner"), "content")
	g.Expect(o.kinds("owner")).To(BeEmpty())
	g.Eventually(func() int { return watchesOf(t, "configmaps", ns) }).WithTimeout(patience).Should(BeZero())
}

// watchesOf returns the number of open watches of a resource in a namespace, according to the API
// server's audit log. Only watches by ServiceAccounts of that namespace count.
func watchesOf(t *testing.T, resource, namespace string) int {
	t.Helper()
	open := map[string]bool{}
	for _, event := range auditLog(t, time.Time{}) {
		if event.Verb != "watch" || event.ObjectRef.Resource != resource || event.ObjectRef.Namespace != namespace ||
			!strings.HasPrefix(event.User.Username, "system:serviceaccount:"+namespace+":") {
			continue
		}
		open[event.AuditID] = event.Stage != "ResponseComplete" // the last stage
	}
	for id := range open {
		if !open[id] {
			delete(open, id)
		}
	}
	return len(open)
}

// TestOnError checks that OnError is notified when the identity may not watch, and when it may
// watch again. OnError may end the watch.
func TestOnError(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns := namespace(t)
	create(t, serviceAccount(ns, "poor"))
	create(t, extension(ns, "poor"))
	o := startOperator(t, clustercache.Options{})
	state := o.waitConnected(t, "poor")
	c := newFakeController(t)
	watchErrors := make(chan clustercache.WatchError, 100)
	options := c.watch("content", &corev1.ConfigMap{}, ns)
	options.OnError = func(_ context.Context, err clustercache.WatchError) { watchErrors <- err }
	g.Expect(o.Watch(ctx, key("poor"), clustercache.NewWatcher(options))).To(Succeed())
	var denied clustercache.WatchError
	g.Eventually(watchErrors).WithTimeout(patience).Should(Receive(&denied))
	g.Expect(denied.State).To(Equal(scopedcache.StateForbidden))
	g.Expect(apierrors.IsForbidden(denied.Err)).To(BeTrue())
	g.Expect(denied.Extension).To(Equal(key("poor")))
	g.Expect(denied.Name).To(Equal("content"))
	g.Expect(denied.Kind.Kind).To(Equal("ConfigMap"))
	g.Expect(denied.Scope.Namespace).To(Equal(ns))
	g.Expect(denied.Identity).To(Equal(state.Identity))

	createConfigMaps(t, ns, "a")
	grant(t, ns, "poor",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}})
	g.Eventually(watchErrors).WithTimeout(patience).Should(Receive(HaveField("State", scopedcache.StateSynced)))
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create a"))

	// Another OnError ends its watch at the first notification.
	unwatched := make(chan struct{})
	var once sync.Once
	other := c.watch("secrets", &corev1.Secret{}, ns)
	other.OnError = func(ctx context.Context, err clustercache.WatchError) {
		o.Unwatch(ctx, key("poor"), err.Name)
		once.Do(func() { close(unwatched) })
	}
	g.Expect(o.Watch(ctx, key("poor"), clustercache.NewWatcher(other))).To(Succeed())
	g.Eventually(unwatched).WithTimeout(patience).Should(BeClosed())
	g.Expect(o.kinds("poor")).To(Equal([]string{"ConfigMap/" + ns}))
}

// TestRevokedPermissionOfAConnection revokes a permission and grants it again. The revocation ends
// the watch and notifies OnError and the extension sources, and reads are Forbidden. After the
// grant everything resumes by itself. With WatchRBAC no caller waits for AccessReviewInterval. The
// state reports the problem.
func TestRevokedPermissionOfAConnection(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns := namespace(t)
	create(t, serviceAccount(ns, "tenant"))
	grant(t, ns, "tenant",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}})
	create(t, extension(ns, "tenant"))
	createConfigMaps(t, ns, "a")
	bindOperator(t, "latchkey-rbac-events")
	o := startOperator(t,
		clustercache.Options{Cache: clustercache.CacheOptions{AccessReviewInterval: time.Hour, WatchRBAC: true}})
	o.waitConnected(t, "tenant")
	c := newFakeController(t)
	watchErrors := make(chan clustercache.WatchError, 100)
	options := c.watch("content", &corev1.ConfigMap{}, ns)
	options.OnError = func(_ context.Context, err clustercache.WatchError) { watchErrors <- err }
	g.Expect(o.Watch(ctx, key("tenant"), clustercache.NewWatcher(options))).To(Succeed())
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create a"))
	tenantClient, err := o.GetClient(ctx, key("tenant"))
	g.Expect(err).NotTo(HaveOccurred())
	read := func() error { return tenantClient.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns)) }
	g.Expect(read()).To(Succeed())
	sources := sourceEvents(t, o, "tenant")
	drain := func() {
		for len(sources) > 0 {
			<-sources
		}
	}

	drain()
	binding := roleBinding(ns, "tenant", rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: "tenant"})
	g.Expect(admin.Delete(ctx, binding)).To(Succeed())
	begin := time.Now()
	g.Eventually(read).WithTimeout(patience).WithPolling(time.Millisecond).Should(Satisfy(apierrors.IsForbidden))
	t.Logf("the read was refused %s after the revocation", time.Since(begin).Round(10*time.Millisecond))
	var lost clustercache.WatchError
	g.Eventually(watchErrors).WithTimeout(patience).Should(Receive(&lost))
	g.Expect(lost.State).To(Equal(scopedcache.StateForbidden))
	g.Expect(lost.Err).To(MatchError(ContainSubstring("system:serviceaccount:" + ns + ":tenant")))
	g.Eventually(sources).WithTimeout(patience).Should(Receive())
	g.Expect(o.state("tenant").Phase).To(Equal(clustercache.PhaseConnected))
	g.Expect(o.state("tenant").Scopes).
		To(
			HaveExactElements(And(HaveField("State", scopedcache.StateForbidden), HaveField("Objects", 0),
				HaveField("Dependents", []string{"content"}))))

	g.Expect(admin.Delete(ctx, configMap(ns, "a"))).To(Succeed())
	createConfigMaps(t, ns, "b")
	drain()
	create(t, roleBinding(ns, "tenant", rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: "tenant"}))
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElements("create b", "delete a"))
	g.Eventually(watchErrors).WithTimeout(patience).Should(Receive(HaveField("State", scopedcache.StateSynced)))
	g.Eventually(sources).WithTimeout(patience).Should(Receive())
	g.Expect(read()).To(Succeed())
}

// sourceEvents returns a channel that receives every event of an extension source about an
// extension, from now on.
func sourceEvents(t *testing.T, o *operator, name string) <-chan struct{} {
	t.Helper()
	events := make(chan struct{}, 100)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
	ctx, cancel := context.WithCancel(context.Background())
	first := make(chan struct{})
	var begun atomic.Bool
	source := o.GetExtensionSource("permissions", func(_ context.Context, extension client.Object) []ctrl.Request {
		switch {
		case extension.GetName() != name:
		case !begun.Swap(true):
			close(first) // the event about the state at the start
		default:
			events <- struct{}{}
		}
		return nil
	})
	NewWithT(t).Expect(source.Start(ctx, queue)).To(Succeed())
	<-first
	t.Cleanup(func() {
		cancel()
		queue.ShutDown()
	})
	return events
}

// Cluster-scoped content whose manifests carry namespaces has one informer, and each event comes
// once, also if several dependents write the namespace in different ways.
func TestWatchClusterScopedContent(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns := namespace(t)
	tenant(t, ns, "owner")
	user := "system:serviceaccount:" + ns + ":owner"
	grantCluster(t, user, "roles", rbacv1.PolicyRule{
		APIGroups: []string{rbacv1.GroupName},
		Resources: []string{"clusterroles"},
		Verbs:     []string{"list", "watch"},
	})
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "owner")
	c := newFakeController(t)
	role := func(namespace string) client.Object {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ns}}
	}
	begin := time.Now()
	watch := func(dependent types.UID, objects ...client.Object) {
		g.Expect(o.WatchContent(ctx, key("owner"), clustercache.NewContentWatch(clustercache.ContentWatchOptions{
			Name:         "content",
			Watcher:      c,
			Objects:      objects,
			EventHandler: c.watch("content", nil, "").EventHandler,
			Dependent:    dependent,
		}))).To(Succeed())
	}
	watch("one", role(""), role("x"), role("y"))
	watch("two", role("z"))
	g.Expect(o.kinds("owner")).To(Equal([]string{"ClusterRole/"}))
	create(t, role(""))
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create " + ns))
	g.Expect(admin.Patch(ctx, role(""), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`)))).
		To(Succeed())
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("update " + ns))
	events := slices.DeleteFunc(c.seen(), func(event string) bool { return !strings.HasSuffix(event, " "+ns) })
	g.Expect(events).To(Equal([]string{"create " + ns, "update " + ns}))
	watches := 0
	for _, event := range auditLog(t, begin) {
		if event.User.Username == user && event.Verb == "watch" && event.Stage == "RequestReceived" {
			g.Expect(event.ObjectRef.Resource).To(Equal("clusterroles"))
			watches++
		}
	}
	g.Expect(watches).To(Equal(1))
}
