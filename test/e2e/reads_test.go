package e2e

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// requestsFor returns, by the API server's own count, the selectors of each watch of ConfigMaps
// that a user has begun since begin, and the requests of the user that were refused.
func requestsFor(t *testing.T, username string, begin time.Time) (watches, refused []string) {
	t.Helper()
	for _, event := range auditLog(t, begin) {
		if event.User.Username != username {
			continue
		}
		received := event.Stage == "RequestReceived"
		if event.ResponseStatus.Code == http.StatusForbidden && !received {
			refused = append(refused, event.String())
		}
		if received && event.Verb == "watch" && event.ObjectRef.Resource == "configmaps" {
			uri, err := url.Parse(event.RequestURI)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			query := uri.Query()
			watches = append(watches, "labels "+query.Get("labelSelector")+" fields "+query.Get("fieldSelector"))
		}
	}
	return watches, refused
}

// A Role with resourceNames suffices to watch and to read that object, with one watch and without a
// request that is refused. A List with the labels of a watch needs no second watch.
func TestReadsThatFitTheRole(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	begin := time.Now()
	verbs := []string{"get", "list", "watch"}
	create(t, serviceAccount(ns, "named"))
	grant(t, ns, "named", rbacv1.PolicyRule{
		APIGroups:     []string{""},
		Resources:     []string{"configmaps"},
		ResourceNames: []string{"a", "b", "gone"},
		Verbs:         verbs,
	})
	create(t, extension(ns, "named"))
	tenant(t, ns, "labelled")
	create(t, configMap(ns, "a"))
	create(t, configMap(ns, "b"))
	create(t, configMap(ns, "c"))
	chosen := configMap(ns, "d")
	chosen.Labels = map[string]string{"choose": "me"}
	create(t, chosen)
	o := startOperator(t, clustercache.Options{})
	ctx := t.Context()
	watch := func(name string, scope clustercache.Scope) *fakeController {
		o.waitConnected(t, name)
		c := newFakeController(t)
		options := c.watch("content", &corev1.ConfigMap{}, ns)
		scope.Namespace = ns
		options.Scope = scope
		g.Expect(o.Watch(ctx, key(name), clustercache.NewWatcher(options))).To(Succeed())
		return c
	}

	c := watch("named", clustercache.Scope{FieldSelector: fields.OneTermEqualSelector("metadata.name", "a")})
	g.Eventually(c.seen).WithTimeout(patience).Should(Equal([]string{"create a"}))
	reader, err := o.GetClient(ctx, key("named"))
	g.Expect(err).NotTo(HaveOccurred())
	get := func(name string) error {
		return reader.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, &corev1.ConfigMap{})
	}
	g.Expect(get("a")).To(Succeed())
	onlyA := "labels  fields metadata.namespace=" + ns + ",metadata.name=a"
	user := "system:serviceaccount:" + ns + ":"
	watches, refused := requestsFor(t, user+"named", begin)
	g.Expect(watches).To(Equal([]string{onlyA}), "the read uses the watch")
	g.Expect(refused).To(BeEmpty())
	g.Expect(get("b")).To(Succeed(), "by a watch of that name")
	g.Expect(get("gone")).To(Satisfy(apierrors.IsNotFound))
	g.Expect(get("c")).To(Satisfy(apierrors.IsForbidden))
	g.Expect(reader.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns))).To(Satisfy(apierrors.IsForbidden))
	watches, refused = requestsFor(t, user+"named", begin)
	g.Expect(watches).To(HaveLen(3))
	g.Expect(refused).To(BeEmpty(), "permissions are asked for, not tried")

	c = watch("labelled", clustercache.Scope{LabelSelector: labels.SelectorFromSet(chosen.Labels)})
	g.Eventually(c.seen).WithTimeout(patience).Should(Equal([]string{"create d"}))
	reader, err = o.GetClient(ctx, key("labelled"))
	g.Expect(err).NotTo(HaveOccurred())
	list := &corev1.ConfigMapList{}
	g.Expect(reader.List(ctx, list, client.InNamespace(ns), client.MatchingLabels(chosen.Labels))).To(Succeed())
	g.Expect(list.Items).To(HaveLen(1))
	g.Expect(list.Items[0].Name).To(Equal("d"))
	watches, refused = requestsFor(t, user+"labelled", begin)
	g.Expect(watches).To(Equal([]string{"labels choose=me fields metadata.namespace=" + ns}))
	g.Expect(refused).To(BeEmpty())
}

// With LiveGet a connection's cached Get needs get alone. The state and a series show it.
func TestLiveGet(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	create(t, serviceAccount(ns, "getter"))
	grant(t, ns, "getter", rbacv1.PolicyRule{
		APIGroups: []string{""},
		Resources: []string{"configmaps"},
		Verbs:     []string{"get"},
	})
	create(t, extension(ns, "getter"))
	create(t, configMap(ns, "a"))
	begin := time.Now()
	o := startOperator(t, clustercache.Options{
		Client: clustercache.ClientOptions{Cache: clustercache.ClientCacheOptions{LiveGet: true}},
	})
	o.waitConnected(t, "getter")
	reader, err := o.GetClient(t.Context(), key("getter"))
	g.Expect(err).NotTo(HaveOccurred())
	get := func() error {
		return reader.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "a"}, &corev1.ConfigMap{})
	}
	g.Eventually(get).WithTimeout(patience).Should(Succeed())
	g.Expect(reader.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))).
		To(Satisfy(apierrors.IsForbidden))
	watches, refused := requestsFor(t, "system:serviceaccount:"+ns+":getter", begin)
	g.Expect(watches).To(BeEmpty())
	g.Expect(refused).To(BeEmpty())
	g.Expect(o.state("getter").Scopes).To(ContainElement(And(HaveField("State", clustercache.StateLive),
		HaveField("Scope.Namespace", ns), HaveField("LastError", Satisfy(apierrors.IsForbidden)))))
	g.Expect(series(t)).To(And(HaveKeyWithValue("latchkey_live_gets_total", BeNumerically(">=", 1)),
		Not(HaveKey("latchkey_informers state=Live"))))
}

// PerExtension makes the reads and watches of a connection select what belongs to its extension. A
// change of the options' version is another connection, and For follows it.
func TestCacheOptionsPerExtension(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	ctx := t.Context()
	tenant(t, ns, "red")
	tenant(t, ns, "blue")
	for _, owner := range []string{"red", "blue", "green"} {
		object := configMap(ns, "of-"+owner)
		object.Labels = map[string]string{"owner": owner}
		create(t, object)
	}
	begin := time.Now()
	o := startOperator(t, clustercache.Options{
		Cache: clustercache.CacheOptions{
			PerExtension: func(extension client.Object) clustercache.CacheOverrides {
				owner := extension.GetName()
				if other := extension.GetAnnotations()["owner"]; other != "" {
					owner = other
				}
				return clustercache.CacheOverrides{
					Version: "owner=" + owner,
					ByObject: map[client.Object]cache.ByObject{
						&corev1.ConfigMap{}: {Label: labels.SelectorFromSet(labels.Set{"owner": owner})},
					},
				}
			},
		},
	})
	names := func(reader client.Reader) (names []string, err error) {
		list := &corev1.ConfigMapList{}
		err = reader.List(ctx, list, client.InNamespace(ns))
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
		return names, err
	}
	watched := map[string]*fakeController{}
	for _, name := range []string{"red", "blue"} {
		o.waitConnected(t, name)
		watched[name] = newFakeController(t)
		g.Expect(o.Watch(ctx, key(name), clustercache.NewWatcher(watched[name].watch("content", &corev1.ConfigMap{}, ns)))).
			To(Succeed())
		reader, err := o.GetClient(ctx, key(name))
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() ([]string, error) { return names(reader) }).WithTimeout(patience).
			Should(Equal([]string{"of-" + name}))
		g.Expect(reader.Get(ctx, client.ObjectKey{Namespace: ns, Name: "of-green"}, &corev1.ConfigMap{})).
			To(Satisfy(apierrors.IsNotFound))
		g.Eventually(watched[name].seen).WithTimeout(patience).Should(Equal([]string{"create of-" + name}))
		watches, _ := requestsFor(t, "system:serviceaccount:"+ns+":"+name, begin)
		g.Expect(watches).To(Equal([]string{"labels owner=" + name + " fields metadata.namespace=" + ns}))
	}

	red := extension(ns, "red")
	g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(red), red)).To(Succeed())
	changed := red.DeepCopy()
	changed.SetAnnotations(map[string]string{"owner": "green"})
	g.Expect(admin.Update(ctx, changed)).To(Succeed())
	var reader client.Client
	g.Eventually(func() (err error) {
		reader, err = o.For(ctx, changed).GetClient(ctx)
		return err
	}).WithTimeout(patience).Should(Succeed())
	g.Eventually(func() ([]string, error) { return names(reader) }).WithTimeout(patience).
		Should(Equal([]string{"of-green"}))
	_, err := o.For(ctx, red).GetClient(ctx)
	g.Expect(err).To(MatchError(And(ContainSubstring("owner=red"), ContainSubstring("owner=green"))))
	g.Eventually(watched["red"].seen).WithTimeout(patience).
		Should(ConsistOf("create of-red", "create of-green", "delete of-red"))
	g.Expect(o.state("blue").Epoch).To(BeEquivalentTo(1), "no other extension is touched")
}

// With Namespaces in PerExtension, a List and a watch of all namespaces are of these, and Roles
// there suffice. Other namespaces in another version are another connection: the watch goes on
// there, and its handler hears of what is no longer in it.
func TestNamespacesPerExtension(t *testing.T) {
	g := NewWithT(t)
	ns, second, third := namespace(t), namespace(t), namespace(t)
	ctx := t.Context()
	tenant(t, ns, "tenant")
	for _, name := range []string{second, third} {
		create(t, &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "tenant"},
			Rules:      []rbacv1.PolicyRule{everythingInCore},
		})
		create(t, roleBinding(name, "tenant", rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: "tenant"}))
	}
	for i, name := range []string{ns, second, third} {
		create(t, configMap(name, fmt.Sprintf("in-%d", i+1)))
	}
	ours := func(names []string) []string { // and not what each namespace has
		return slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, "kube-root-ca.crt") })
	}
	seen := func(c *fakeController) func() []string { return func() []string { return ours(c.seen()) } }
	begin := time.Now()
	o := startOperator(t, clustercache.Options{
		Cache: clustercache.CacheOptions{
			PerExtension: func(extension client.Object) clustercache.CacheOverrides {
				other := cmp.Or(extension.GetAnnotations()["other"], second)
				return clustercache.CacheOverrides{
					Version: "with " + other,
					ByObject: map[client.Object]cache.ByObject{
						&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{ns: {}, other: {}}},
					},
				}
			},
		},
	})
	o.waitConnected(t, "tenant")
	c := newFakeController(t)
	g.Expect(o.Watch(ctx, key("tenant"), clustercache.NewWatcher(c.watch("all", &corev1.ConfigMap{}, "")))).To(Succeed())
	g.Eventually(seen(c)).WithTimeout(patience).Should(ConsistOf("create in-1", "create in-2"))
	names := func() ([]string, error) {
		reader, err := o.GetClient(ctx, key("tenant"))
		if err != nil {
			return nil, err
		}
		list, names := &corev1.ConfigMapList{}, []string(nil)
		err = reader.List(ctx, list)
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
		return ours(names), err
	}
	g.Eventually(names).WithTimeout(patience).Should(ConsistOf("in-1", "in-2"))
	reader, err := o.GetClient(ctx, key("tenant"))
	g.Expect(err).NotTo(HaveOccurred())
	in3 := client.ObjectKey{Namespace: third, Name: "in-3"}
	g.Expect(reader.Get(ctx, in3, &corev1.ConfigMap{})).To(MatchError(ContainSubstring("unknown namespace for the cache")))
	watches, refused := requestsFor(t, "system:serviceaccount:"+ns+":tenant", begin)
	g.Expect(watches).To(ConsistOf("labels  fields metadata.namespace="+ns, "labels  fields metadata.namespace="+second),
		"the watch and the List share them")
	g.Expect(refused).To(BeEmpty())

	elsewhere := newFakeController(t)
	g.Expect(o.Watch(ctx, key("tenant"), clustercache.NewWatcher(elsewhere.watch("third", &corev1.ConfigMap{}, third)))).
		To(Succeed())
	g.Eventually(seen(elsewhere)).WithTimeout(patience).Should(ConsistOf("create in-3"))
	g.Expect(reader.Get(ctx, in3, &corev1.ConfigMap{})).To(MatchError(ContainSubstring("unknown namespace for the cache")),
		"a watch there changes nothing for reads")

	changed := extension(ns, "tenant")
	g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(changed), changed)).To(Succeed())
	changed.SetAnnotations(map[string]string{"other": third})
	g.Expect(admin.Update(ctx, changed)).To(Succeed())
	g.Eventually(seen(c)).WithTimeout(patience).
		Should(ConsistOf("create in-1", "create in-2", "create in-3", "create in-1", "delete in-2"))
	g.Eventually(names).WithTimeout(patience).Should(ConsistOf("in-1", "in-3"))
}

// With ReadYourWrites, a connection's cached reads include what its clients wrote. So do those of a
// client of one's own on the connection's cache. controller-runtime's own promise, which would
// outlast the connection, is refused.
func TestReadYourWrites(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	ctx := t.Context()
	tenant(t, ns, "writer")
	o := startOperator(t, clustercache.Options{
		Client: clustercache.ClientOptions{Cache: clustercache.ClientCacheOptions{ReadYourWrites: true}},
	})
	o.waitConnected(t, "writer")
	cached, err := o.GetClient(ctx, key("writer"))
	g.Expect(err).NotTo(HaveOccurred())
	uncached, err := o.GetUncachedClient(ctx, key("writer"))
	g.Expect(err).NotTo(HaveOccurred())
	whole, err := o.GetCluster(ctx, key("writer"))
	g.Expect(err).NotTo(HaveOccurred())
	config, err := o.GetRESTConfig(ctx, key("writer"))
	g.Expect(err).NotTo(HaveOccurred())
	httpClient, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	defer utilnet.CloseIdleConnectionsFor(httpClient.Transport)
	options := client.Options{HTTPClient: httpClient, Cache: &client.CacheOptions{Reader: whole.GetCache()}}
	own, err := scopedcache.NewClient(config, options)
	g.Expect(err).NotTo(HaveOccurred())
	for writer, reader := range map[client.Client]client.Client{cached: whole.GetClient(), uncached: cached, own: own} {
		g.Eventually(func() error { return reader.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns)) }).
			WithTimeout(patience).Should(Succeed()) // Forbidden until the API server knows the Role
		for range 10 {
			object := configMap(ns, "")
			object.GenerateName = "own-"
			g.Eventually(func() error { return writer.Create(ctx, object) }).WithTimeout(patience).Should(Succeed())
			name := client.ObjectKeyFromObject(object)
			g.Expect(reader.Get(ctx, name, object)).To(Succeed())
			g.Expect(writer.Delete(ctx, object)).To(Succeed())
			g.Expect(reader.Get(ctx, name, object)).To(Satisfy(apierrors.IsNotFound))
		}
	}
	options.Cache.EnableReadYourWritesConsistency = ptr.To(true)
	theirs, err := client.New(config, options)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(theirs.Get(ctx, client.ObjectKey{Namespace: ns, Name: "a"}, &corev1.ConfigMap{})).
		To(MatchError(ContainSubstring("Client.Cache.ReadYourWrites")))
}

// A watch of a set of namespaces goes on after a reconnect: its handler hears of what was deleted
// in one of them, and of nothing that still exists in the other.
func TestWatchNamespacesAfterReconnect(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, other := namespace(t), namespace(t)
	tenant(t, ns, "watcher")
	create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: other, Name: "watcher"},
		Rules:      []rbacv1.PolicyRule{everythingInCore},
	})
	create(t, roleBinding(other, "watcher", rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: "watcher"}))
	create(t, configMap(ns, "stays"))
	create(t, configMap(other, "goes"))
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "watcher")
	c := newFakeController(t)
	options := c.watch("set", metadataOf("ConfigMap"), "")
	options.Scope.Namespaces = scopedcache.InNamespaces(ns, other)
	g.Expect(o.Watch(ctx, key("watcher"), clustercache.NewWatcher(options))).To(Succeed())
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElements("create stays", "create goes"))

	g.Expect(admin.Delete(ctx, serviceAccount(ns, "watcher"))).To(Succeed())
	o.waitReason(t, "watcher", clustercache.ReasonServiceAccountNotFound)
	c.forget()
	g.Expect(admin.Delete(ctx, configMap(other, "goes"))).To(Succeed())
	create(t, serviceAccount(ns, "watcher"))
	o.waitConnected(t, "watcher")
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElements("delete goes", "create stays"))
	create(t, configMap(ns, "last"))
	create(t, configMap(other, "last"))
	g.Eventually(func() int {
		return len(slices.DeleteFunc(c.seen(), func(event string) bool { return event != "create last" }))
	}).WithTimeout(patience).Should(Equal(2))
	g.Expect(c.seen()).NotTo(ContainElement("delete stays"))
}
