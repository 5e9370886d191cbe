package scopedcache_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// ownWorld is a user whose watches can be delayed, and a client that reads what it wrote.
type ownWorld struct {
	*WithT
	ns     string
	user   *user
	server *faultyServer
	cache  *runningCache
	client client.Client
}

// hung is longer than a test.
const hung = int64(time.Hour)

func newOwnWorld(t *testing.T, options scopedcache.Options, opts cache.Options, resources ...string) *ownWorld {
	t.Helper()
	w := &ownWorld{WithT: NewWithT(t), ns: createNamespace(t), user: newUser(t)}
	for _, resource := range resources {
		w.user.grant(t, w.ns, resource, "*")
	}
	w.server = newFaultyServer(t, w.user)
	options.PerNamespace = true
	w.cache = w.user.startWithConfig(t, w.server.config, options, opts)
	w.client = ownClient(t, w.server.config, w.cache)
	return w
}

// read makes an informer of the kind run. The first read may take longer than ReadTimeout.
func (w *ownWorld) read(t *testing.T, list client.ObjectList) {
	t.Helper()
	w.Eventually(func() error { return w.client.List(t.Context(), list, client.InNamespace(w.ns)) }).
		WithTimeout(patience).Should(Succeed())
}

// Writes of subresources are writes of the object.
func TestReadYourWritesOfSubresources(t *testing.T) {
	w := newOwnWorld(t, scopedcache.Options{}, cache.Options{}, "deployments.apps", "deployments/status.apps",
		"deployments/scale.apps", "pods", "pods/eviction", "serviceaccounts", "serviceaccounts/token")
	ctx := t.Context()
	pod := corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false),
		Containers:                   []corev1.Container{{Name: "a", Image: "a"}},
	}
	match := map[string]string{"a": "b"}
	object := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "a"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: match},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: match}, Spec: pod},
		},
	}
	for _, list := range []client.ObjectList{&appsv1.DeploymentList{}, &corev1.PodList{}, &corev1.ServiceAccountList{}} {
		w.read(t, list)
	}
	w.server.watchDelay.Store(int64(100 * time.Millisecond))
	w.Expect(w.client.Create(ctx, object)).To(Succeed())
	key := client.ObjectKeyFromObject(object)
	found := &appsv1.Deployment{}
	get := func() *appsv1.Deployment {
		w.Expect(w.client.Get(ctx, key, found)).To(Succeed())
		return found
	}
	w.Expect(get().UID).To(Equal(object.UID))

	object.Status.ObservedGeneration = 7
	w.Expect(w.client.Status().Update(ctx, object)).To(Succeed())
	w.Expect(get().Status.ObservedGeneration).To(BeEquivalentTo(7))
	before := object.DeepCopy()
	object.Status.ObservedGeneration = 8
	w.Expect(w.client.Status().Patch(ctx, object, client.MergeFrom(before))).To(Succeed())
	w.Expect(get().Status.ObservedGeneration).To(BeEquivalentTo(8))
	lists := w.user.requests.lists("/deployments")
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 5}}
	w.Expect(w.client.SubResource("scale").Update(ctx, object, client.WithSubResourceBody(scale))).To(Succeed())
	w.Expect(get().Spec.Replicas).To(HaveValue(BeEquivalentTo(5)))
	w.Expect(w.user.requests.lists("/deployments")).To(Equal(lists), "the answers say what to wait for")

	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "default"}}
	w.Expect(w.client.Create(ctx, account)).To(Succeed())
	w.Expect(w.client.Get(ctx, client.ObjectKeyFromObject(account), account)).To(Succeed())
	lists = w.user.requests.lists("/serviceaccounts")
	w.Expect(w.client.SubResource("token").Create(ctx, account, &authenticationv1.TokenRequest{})).To(Succeed())
	w.Expect(w.client.Get(ctx, client.ObjectKeyFromObject(account), account)).To(Succeed())
	w.Expect(w.user.requests.lists("/serviceaccounts")).To(Equal(lists), "a token changes nothing")

	evicted := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "a"}, Spec: pod}
	w.Expect(w.client.Create(ctx, evicted)).To(Succeed())
	w.Expect(w.client.Get(ctx, key, &corev1.Pod{})).To(Succeed())
	w.Expect(w.client.SubResource("eviction").Create(ctx, evicted, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: w.ns, Name: "a"},
		DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)},
	})).To(Succeed())
	w.Expect(w.client.Get(ctx, key, &corev1.Pod{})).To(Satisfy(apierrors.IsNotFound))
}

// A dry run is no write. A call may do without the promise, and so may a write.
func TestReadYourWritesDisabled(t *testing.T) {
	w := newOwnWorld(t, scopedcache.Options{ReadTimeout: time.Second}, cache.Options{}, "configmaps")
	ctx := t.Context()
	disabled := client.DisableReadYourWritesConsistency
	w.read(t, &corev1.ConfigMapList{})
	w.server.watchDelay.Store(hung)
	get := func(name string, opts ...client.GetOption) error {
		return w.client.Get(ctx, client.ObjectKey{Namespace: w.ns, Name: name}, &corev1.ConfigMap{}, opts...)
	}
	w.Expect(w.client.Create(ctx, configMap(w.ns, "dry"), client.DryRunAll)).To(Succeed())
	w.Expect(client.NewDryRunClient(w.client).Create(ctx, configMap(w.ns, "dry"))).To(Succeed())
	w.Expect(get("dry")).To(Satisfy(apierrors.IsNotFound))
	ignored := configMap(w.ns, "ignored")
	w.Expect(w.client.Create(ctx, ignored, disabled)).To(Succeed())
	w.Expect(w.client.Update(ctx, ignored, disabled)).To(Succeed())
	w.Expect(get("ignored")).To(Satisfy(apierrors.IsNotFound))

	w.Expect(w.client.Create(ctx, configMap(w.ns, "a"))).To(Succeed())
	w.Expect(get("a", disabled)).To(Satisfy(apierrors.IsNotFound))
	list := &corev1.ConfigMapList{}
	w.Expect(w.client.List(ctx, list, client.InNamespace(w.ns), disabled)).To(Succeed())
	w.Expect(list.Items).To(BeEmpty())
	w.Expect(w.cache.List(ctx, list, client.InNamespace(w.ns))).To(Succeed(), "the cache itself waits for nothing")
	w.Expect(get("a")).To(Satisfy(apierrors.IsTimeout))
}

// A wait ends with the context, after ReadTimeout, and with the cache. The error says what was
// waited for. Other objects are read meanwhile.
func TestReadYourWritesEnds(t *testing.T) {
	w := newOwnWorld(t, scopedcache.Options{ReadTimeout: 700 * time.Millisecond}, cache.Options{}, "configmaps")
	ctx := t.Context()
	other := configMap(w.ns, "other")
	w.Expect(w.client.Create(ctx, other)).To(Succeed())
	w.read(t, &corev1.ConfigMapList{})
	w.server.watchDelay.Store(hung)
	object := configMap(w.ns, "a")
	w.Expect(w.client.Create(ctx, object)).To(Succeed())
	key := client.ObjectKeyFromObject(object)
	get := func(ctx context.Context) error { return w.client.Get(ctx, key, &corev1.ConfigMap{}) }

	err := get(ctx)
	w.Expect(err).To(Satisfy(apierrors.IsTimeout))
	var behind *scopedcache.BehindError
	w.Expect(err).To(BeAssignableToTypeOf(behind))
	w.Expect(err).To(MatchError(ContainSubstring("a cached read waits for 700ms at most")))
	w.Expect(err).To(MatchError(ContainSubstring(
		"does not have the client's write of \"" + key.String() + "\", which has version " + object.ResourceVersion)))
	w.Expect(w.client.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(w.ns))).To(Satisfy(apierrors.IsTimeout))
	w.Expect(w.client.Get(ctx, client.ObjectKeyFromObject(other), other)).To(Succeed())

	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	w.Expect(get(short)).To(MatchError(context.DeadlineExceeded))

	w.Expect(w.client.Delete(ctx, other)).To(Succeed())
	w.Expect(w.client.Get(ctx, client.ObjectKeyFromObject(other), other)).To(MatchError(ContainSubstring(
		"does not have the client's deletion of \"" + w.ns + "/other\"")))

	result := make(chan error, 1)
	go func() { result <- get(ctx) }()
	w.cache.stop()
	w.Eventually(result).WithTimeout(patience).Should(Receive(MatchError(scopedcache.ErrStopped)))
}

// When permission goes while a read waits, the read is Forbidden.
func TestReadYourWritesWithoutPermission(t *testing.T) {
	w := newOwnWorld(t, scopedcache.Options{ReadTimeout: patience, AccessReviewInterval: shortInterval},
		cache.Options{}, "secrets")
	grant := w.user.grant(t, w.ns, "configmaps", "*")
	w.read(t, &corev1.ConfigMapList{})
	w.server.watchDelay.Store(hung)
	object := configMap(w.ns, "a")
	w.Expect(w.client.Create(t.Context(), object)).To(Succeed())
	result := make(chan error, 1)
	go func() {
		result <- w.client.Get(context.Background(), client.ObjectKeyFromObject(object), &corev1.ConfigMap{})
	}()
	grant.revoke(t)
	w.Eventually(result).WithTimeout(patience).Should(Receive(Satisfy(apierrors.IsForbidden)))
}

// A write of an object that the informer does not select is waited for by nothing, and asked for by
// nothing.
func TestReadYourWritesOfUnselected(t *testing.T) {
	w := newOwnWorld(t, scopedcache.Options{ReadTimeout: time.Second},
		cache.Options{DefaultLabelSelector: labels.SelectorFromSet(visible)}, "configmaps")
	ctx := t.Context()
	w.read(t, &corev1.ConfigMapList{})
	w.server.watchDelay.Store(hung)
	object := configMap(w.ns, "a")
	w.Expect(w.client.Create(ctx, object)).To(Succeed())
	object.Labels = map[string]string{"visible": "no"}
	w.Expect(w.client.Update(ctx, object)).To(Succeed())
	key := client.ObjectKeyFromObject(object)
	w.Expect(w.client.Get(ctx, key, &corev1.ConfigMap{})).To(Satisfy(apierrors.IsNotFound))
	w.Expect(w.client.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(w.ns))).To(Succeed())
	w.Expect(w.user.requests.lists("/configmaps visible=yes")).To(Equal(1), "the list of the informer")
	object.Labels = visible
	w.Expect(w.client.Update(ctx, object)).To(Succeed())
	w.Expect(w.client.Get(ctx, key, &corev1.ConfigMap{})).To(Satisfy(apierrors.IsTimeout))

	// After DeleteAllOf, reads are lists, until a watch has caught up.
	w.Expect(w.client.DeleteAllOf(ctx, object, client.InNamespace(w.ns))).To(Succeed())
	list := &corev1.ConfigMapList{}
	w.Expect(w.client.List(ctx, list, client.InNamespace(w.ns))).To(Succeed())
	w.Expect(list.Items).To(BeEmpty())
	w.Expect(w.client.Get(ctx, key, &corev1.ConfigMap{})).To(Satisfy(apierrors.IsNotFound))
	w.Expect(w.user.requests.lists("/configmaps visible=yes")).To(Equal(3))
}

// An informer that leaves a namespace out, because the cache's options have others for it, is not
// waited for.
func TestReadYourWritesOfOtherNamespaces(t *testing.T) {
	w := &ownWorld{WithT: NewWithT(t), ns: createNamespace(t), user: newUser(t)}
	w.user.grant(t, "", "configmaps", "*")
	w.server = newFaultyServer(t, w.user)
	w.cache = w.user.startWithConfig(t, w.server.config, scopedcache.Options{ReadTimeout: 5 * time.Second}, cache.Options{
		DefaultNamespaces: map[string]cache.Config{w.ns: {}, "": {}},
	})
	w.client = ownClient(t, w.server.config, w.cache)
	list := &corev1.ConfigMapList{}
	w.Expect(w.client.List(t.Context(), list)).To(Succeed())
	w.server.watchDelay.Store(int64(20 * time.Millisecond))
	w.Expect(w.client.Create(t.Context(), configMap(w.ns, "a"))).To(Succeed())
	w.Expect(w.client.List(t.Context(), list)).To(Succeed())
	w.Expect(namesOf(list)).To(ContainElement("a"))
}

// A read does not wait for the next list of an informer that polls, because the identity may not
// watch.
func TestReadYourWritesOfAPoll(t *testing.T) {
	w := newOwnWorld(t, scopedcache.Options{PollWithoutWatch: true, AccessReviewInterval: endlessInterval},
		cache.Options{})
	w.user.grant(t, w.ns, "configmaps", "list", "create", "update", "delete")
	w.read(t, &corev1.ConfigMapList{})
	object := configMap(w.ns, "a")
	key, found := client.ObjectKeyFromObject(object), &corev1.ConfigMap{}
	w.Expect(w.client.Create(t.Context(), object)).To(Succeed())
	w.Expect(w.client.Get(t.Context(), key, found)).To(Succeed())
	object.Data = map[string]string{"key": "value"}
	w.Expect(w.client.Update(t.Context(), object)).To(Succeed())
	w.Expect(w.client.Get(t.Context(), key, found)).To(Succeed())
	w.Expect(found.Data).To(Equal(object.Data))
	w.Expect(w.client.Delete(t.Context(), object)).To(Succeed())
	w.Expect(w.client.Get(t.Context(), key, found)).To(Satisfy(apierrors.IsNotFound))
}

// A manager with a Role reads what it wrote. controller-runtime's own option, which would block, is
// an error.
func TestReadYourWritesOfAManager(t *testing.T) {
	g := NewWithT(t)
	ns, u := createNamespace(t), newUser(t)
	u.grant(t, ns, "configmaps", "*")
	server := newFaultyServer(t, u)
	server.watchDelay.Store(int64(30 * time.Millisecond))
	start := func(newClient client.NewClientFunc) client.Client {
		manager, err := ctrl.NewManager(server.config, ctrl.Options{
			NewCache:  scopedcache.New,
			NewClient: newClient,
			Client:    client.Options{Cache: &client.CacheOptions{EnableReadYourWritesConsistency: ptr.To(true)}},
			Metrics:   metricsserver.Options{BindAddress: "0"},
		})
		g.Expect(err).NotTo(HaveOccurred())
		idleClosers = append(idleClosers, manager.GetHTTPClient().CloseIdleConnections)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- manager.Start(ctx) }()
		g.Expect(manager.GetCache().WaitForCacheSync(ctx)).To(BeTrue())
		t.Cleanup(func() {
			cancel()
			g.Eventually(ended).WithTimeout(patience).Should(Receive(BeNil()))
		})
		return manager.GetClient()
	}
	own := start(scopedcache.NewClient)
	for range 10 {
		object := configMap(ns, "")
		object.GenerateName = "own-"
		g.Expect(own.Create(t.Context(), object)).To(Succeed())
		g.Expect(own.Get(t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
		list := &corev1.ConfigMapList{}
		g.Expect(own.List(t.Context(), list, client.InNamespace(ns))).To(Succeed())
		g.Expect(namesOf(list)).To(ContainElement(object.Name))
	}
	theirs := start(client.New)
	key := client.ObjectKey{Namespace: ns, Name: "a"}
	g.Expect(theirs.Get(t.Context(), key, &corev1.ConfigMap{})).
		To(MatchError(ContainSubstring("set NewClient to scopedcache.NewClient")))
}

// A client of dry runs writes nothing, so nothing is waited for.
func TestReadYourWritesOfADryRun(t *testing.T) {
	w := newOwnWorld(t, scopedcache.Options{ReadTimeout: 5 * time.Second}, cache.Options{}, "configmaps")
	object := configMap(w.ns, "a")
	create(t, object)
	w.read(t, &corev1.ConfigMapList{})
	dry, err := scopedcache.NewClient(w.server.config, client.Options{
		HTTPClient: w.server.Client(),
		Cache:      &client.CacheOptions{Reader: w.cache.Cache},
		DryRun:     ptr.To(true),
	})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(dry.Delete(t.Context(), object)).To(Succeed())
	w.Expect(dry.Get(t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
}

// NewClient needs a cache of this package, with informers of which it is known what they have.
func TestNewClientErrors(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	_, err := scopedcache.NewClient(u.config, client.Options{})
	g.Expect(err).To(MatchError(ContainSubstring("NewClient needs the cache")))
	foreign, err := cache.New(u.config, cache.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = scopedcache.NewClient(u.config, client.Options{Cache: &client.CacheOptions{Reader: foreign}})
	g.Expect(err).To(MatchError(ContainSubstring("set NewCache to scopedcache.New")))
	custom, err := scopedcache.New(u.config, cache.Options{NewInformer: toolscache.NewSharedIndexInformer})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = scopedcache.NewClient(u.config, client.Options{Cache: &client.CacheOptions{Reader: custom}})
	g.Expect(err).To(MatchError(ContainSubstring("NewInformer")))
}
