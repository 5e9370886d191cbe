package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// never returns a backoff of one hour. With never, a test shows that something other than the
// backoff caused the next connection attempt.
func never() wait.Backoff { return wait.Backoff{Duration: time.Hour, Steps: 1} }

// handles holds all clients, readers and configs that a connection gives to callers.
type handles struct {
	client client.Client
	reader client.Reader
	live   client.Client
	config *rest.Config
	whole  cluster.Cluster
}

// httpClientFor returns an HTTP client, and closes its TCP connections after the test. These
// connections belong to client-go, which shares them between all clients made from configs. An
// operator keeps them as long as its process runs.
func httpClientFor(t *testing.T, config *rest.Config) *http.Client {
	t.Helper()
	httpClient, err := rest.HTTPClientFor(config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) })
	return httpClient
}

func handlesOf(t *testing.T, o *operator, name string) (h handles) {
	t.Helper()
	g := NewWithT(t)
	var err error
	h.client, err = o.GetClient(t.Context(), key(name))
	g.Expect(err).NotTo(HaveOccurred())
	h.reader, err = o.GetReader(t.Context(), key(name))
	g.Expect(err).NotTo(HaveOccurred())
	h.live, err = o.GetUncachedClient(t.Context(), key(name))
	g.Expect(err).NotTo(HaveOccurred())
	h.config, err = o.GetRESTConfig(t.Context(), key(name))
	g.Expect(err).NotTo(HaveOccurred())
	h.whole, err = o.GetCluster(t.Context(), key(name))
	g.Expect(err).NotTo(HaveOccurred())
	return h
}

// uses returns the ways to use the handles. Each way does one request or one read in the namespace.
func (h handles) uses(t *testing.T, namespace string) map[string]func() error {
	ctx := t.Context()
	inNamespace := client.InNamespace(namespace)
	clientset, err := kubernetes.NewForConfig(h.config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	// A client that is made from a config has TCP connections of its own. An operator keeps them as
	// long as its process runs.
	t.Cleanup(func() { closeIdle(clientset.CoreV1().RESTClient()) })
	configMap := func() *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "used-"}}
	}
	return map[string]func() error{
		"cached list": func() error { return h.client.List(ctx, &corev1.ConfigMapList{}, inNamespace) },
		"write":       func() error { return h.client.Create(ctx, configMap()) },
		"reader":      func() error { return h.reader.List(ctx, &corev1.ConfigMapList{}, inNamespace) },
		"live list":   func() error { return h.live.List(ctx, &corev1.ConfigMapList{}, inNamespace) },
		"live write":  func() error { return h.live.Create(ctx, configMap()) },
		"clientset": func() error {
			_, err := clientset.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
			return err
		},
		"cluster's client": func() error { return h.whole.GetClient().List(ctx, &corev1.ConfigMapList{}, inNamespace) },
		"cluster's cache":  func() error { return h.whole.GetCache().List(ctx, &corev1.ConfigMapList{}, inNamespace) },
		"cluster's reader": func() error { return h.whole.GetAPIReader().List(ctx, &corev1.ConfigMapList{}, inNamespace) },
		"cluster's HTTP client": func() error {
			resp, err := h.whole.GetHTTPClient().
				Get(strings.TrimSuffix(h.config.Host, "/") + "/api/v1/namespaces/" + namespace + "/configmaps")
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != 200 {
				return errors.New(resp.Status)
			}
			return nil
		},
	}
}

// expectDead checks that every handle fails immediately. If reason is not empty, the errors must
// have that reason.
func (h handles) expectDead(t *testing.T, namespace string, reason clustercache.Reason) {
	t.Helper()
	g := NewWithT(t)
	for name, use := range h.uses(t, namespace) {
		err := use()
		g.Expect(err).To(MatchError(clustercache.ErrNotConnected), name)
		var notConnected *clustercache.NotConnectedError
		g.Expect(errors.As(err, &notConnected)).To(BeTrue(), name)
		if reason != "" {
			g.Expect(notConnected.Reason).To(Equal(reason), name)
		}
	}
	g.Expect(h.whole.Start(t.Context())).To(MatchError(clustercache.ErrNotConnected))
}

func TestEveryHandleWorks(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "worker")
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "worker")
	h := handlesOf(t, o, "worker")
	for name, use := range h.uses(t, ns) {
		// The authorizer applies a new Role a moment later.
		g.Eventually(use).WithTimeout(patience).Should(Succeed(), name)
	}
}

// TestRESTConfigIsACopyWithoutSecrets checks that the config for a caller contains no secret, and
// that the caller's changes to the config affect no other caller.
func TestRESTConfigIsACopyWithoutSecrets(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "copied")
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "copied")
	config, err := o.GetRESTConfig(t.Context(), key("copied"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.BearerToken).To(BeEmpty())
	g.Expect(config.BearerTokenFile).To(BeEmpty())
	g.Expect(config.CertData).To(BeEmpty())
	g.Expect(config.KeyData).To(BeEmpty())
	g.Expect(config.Timeout).To(Equal(10 * time.Second))

	config.Host = "https://elsewhere.invalid"
	config.UserAgent = "changed"
	config.WrapTransport = nil
	clear(config.CAData)
	fresh := handlesOf(t, o, "copied")
	g.Expect(fresh.config.Host).To(Equal(cp.Config().Host))
	g.Expect(fresh.config.UserAgent).To(HaveSuffix("copied"))
	g.Eventually(func() error { return fresh.uses(t, ns)["clientset"]() }).WithTimeout(patience).Should(Succeed())
}

// TestCachedReadsFollowRBAC checks cached reads of an identity with permissions in one namespace.
// Reads of that namespace succeed without any configuration. Other reads return an error that names
// the missing permission.
func TestCachedReadsFollowRBAC(t *testing.T) {
	g := NewWithT(t)
	ns, other := namespace(t), namespace(t)
	tenant(t, ns, "narrow")
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "narrow")
	c := handlesOf(t, o, "narrow").client
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "mine"}}
	g.Eventually(func() error { return c.Create(t.Context(), object) }).WithTimeout(patience).Should(Succeed())
	g.Eventually(func() error { return c.Get(t.Context(), client.ObjectKeyFromObject(object), &corev1.ConfigMap{}) }).
		WithTimeout(patience).Should(Succeed())

	list := &corev1.ConfigMapList{}
	err := c.List(t.Context(), list, client.InNamespace(other))
	g.Expect(err).To(Satisfy(isForbidden), "another namespace: %v", err)
	g.Expect(err.Error()).
		To(And(ContainSubstring("list"), ContainSubstring("configmaps"), ContainSubstring(other),
			ContainSubstring("system:serviceaccount:"+ns+":narrow")))
	err = c.List(t.Context(), list)
	g.Expect(err).To(Satisfy(isForbidden), "all namespaces: %v", err)
	err = c.Get(t.Context(), key("nowhere"), gadget())
	g.Expect(err).To(Satisfy(isNoMatch), "a kind that is not served: %v", err)
}

// TestCacheOptions checks that Options.Cache and Options.Client.Cache apply to the reads of every
// connection.
func TestCacheOptions(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "shaped")
	index := clustercache.CacheOptionsIndex{
		Object: &corev1.ConfigMap{},
		Field:  "data.color",
		ExtractValue: func(object client.Object) []string {
			return []string{object.(*corev1.ConfigMap).Data["color"]}
		},
	}
	o := startOperator(t, clustercache.Options{
		Cache: clustercache.CacheOptions{
			Indexes:          []clustercache.CacheOptionsIndex{index},
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Service{}: {Label: labels.SelectorFromSet(labels.Set{"seen": "yes"})},
			},
		},
		Client: clustercache.ClientOptions{
			Cache: clustercache.ClientCacheOptions{DisableFor: []client.Object{&corev1.Secret{}}},
		},
	})
	o.waitConnected(t, "shaped")
	h := handlesOf(t, o, "shaped")
	red, blue := configMap(ns, "red"), configMap(ns, "blue")
	red.Data, blue.Data = map[string]string{"color": "red"}, map[string]string{"color": "blue"}
	create(t, red)
	create(t, blue)
	list := &corev1.ConfigMapList{}
	g.Eventually(func() []corev1.ConfigMap {
		list = &corev1.ConfigMapList{}
		if err := h.client.List(t.Context(), list, client.InNamespace(ns),
			client.MatchingFields{"data.color": "red"}); err != nil {
			return nil
		}
		return list.Items
	}).WithTimeout(patience).Should(ConsistOf(HaveField("Name", "red")))
	g.Expect(list.Items[0].ManagedFields).To(BeEmpty(), "the transform applies")

	for _, seen := range []string{"yes", "no"} {
		create(t,
			&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: ns,
					Name:      "seen-" + seen,
					Labels:    map[string]string{"seen": seen},
				},
				Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
			})
	}
	g.Eventually(func() []corev1.Service {
		services := &corev1.ServiceList{}
		if err := h.client.List(t.Context(), services, client.InNamespace(ns)); err != nil {
			return nil
		}
		return services.Items
	}).WithTimeout(patience).Should(ConsistOf(HaveField("Name", "seen-yes")))

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "live"}}
	g.Expect(h.client.List(t.Context(), &corev1.SecretList{}, client.InNamespace(ns))).To(Succeed())
	create(t, secret)
	g.Expect(h.client.Get(t.Context(), client.ObjectKeyFromObject(secret), &corev1.Secret{})).
		To(Succeed(), "a live read finds the Secret immediately")

	// SetupWithManager rejects options that cannot work.
	mgr, err := ctrl.NewManager(cp.Config(), manager.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	for problem, options := range map[string]clustercache.Options{
		"must not have the empty name": {Cache: clustercache.CacheOptions{
			ByObject: map[client.Object]cache.ByObject{&corev1.Service{}: {Namespaces: map[string]cache.Config{ns: {}, "": {}}}},
		}},
		// an object without a kind
		"Indexes": {Cache: clustercache.CacheOptions{
			Indexes: []clustercache.CacheOptionsIndex{{Object: &unstructured.Unstructured{}}},
		}},
		"would never be called": {Credentials: elsewhere("t", nil), AllowIdentity: clustercache.GuardedByAdmission},
	} {
		_, err := clustercache.SetupWithManager(t.Context(), mgr, quick(options), unnamed())
		g.Expect(err).To(MatchError(ContainSubstring(problem)))
	}
	utilnet.CloseIdleConnectionsFor(mgr.GetHTTPClient().Transport)
}
