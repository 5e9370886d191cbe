package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// siblings creates extensions that all name one ServiceAccount, which may use all core resources,
// and which is created unless it exists.
func siblings(t *testing.T, namespace, serviceAccount string, names ...string) {
	t.Helper()
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: serviceAccount},
		&corev1.ServiceAccount{}); err != nil {
		tenant(t, namespace, serviceAccount)
	}
	for _, name := range names {
		if name == serviceAccount {
			continue
		}
		sibling := extension(namespace, serviceAccount)
		sibling.SetName(name)
		create(t, sibling)
	}
}

// requestsOfInformers returns the lists and watches of ConfigMaps, and the access reviews, that a
// user sent since begin. Each is the verb, or "stream" for a watch that begins with a list, and the
// extension that sent it.
func requestsOfInformers(t *testing.T, username string, begin time.Time) (requests []string) {
	t.Helper()
	for _, event := range auditLog(t, begin) {
		if event.User.Username != username || event.Stage != "RequestReceived" {
			continue
		}
		verb := event.Verb
		uri, err := url.Parse(event.RequestURI)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		if verb == "watch" && uri.Query().Get("sendInitialEvents") == "true" {
			verb = "stream"
		}
		_, extension, _ := strings.Cut(event.UserAgent, "extension/")
		switch event.ObjectRef.Resource {
		case "configmaps":
			requests = append(requests, verb+" as "+extension)
		case "selfsubjectaccessreviews":
			requests = append(requests, "review as "+extension)
		}
	}
	return requests
}

func countOf(requests []string, prefix string) (n int) {
	for _, request := range requests {
		if strings.HasPrefix(request, prefix) {
			n++
		}
	}
	return n
}

// Extensions of one ServiceAccount share a watch, and the reviews before it. The first read of a
// sibling sends no request. Each sees only its own scopes.
func TestSiblingsShareAnInformer(t *testing.T) {
	g := NewWithT(t)
	ns, begin := namespace(t), time.Now()
	const users, each = 3, 10
	names := func(user int) (list []string) {
		for n := range each {
			list = append(list, fmt.Sprintf("s%d-%d-%s", user, n, ns))
		}
		return list
	}
	for user := range users {
		siblings(t, ns, names(user)[0], names(user)...)
	}
	o := startOperator(t, clustercache.Options{
		Cache: clustercache.CacheOptions{AccessReviewInterval: time.Hour}, // no reviews but those of the first reads
	})
	for user := range users {
		username := "system:serviceaccount:" + ns + ":" + names(user)[0]
		for n, name := range names(user) {
			o.waitConnected(t, name)
			reader, err := o.GetReader(t.Context(), key(name))
			g.Expect(err).NotTo(HaveOccurred())
			before := requestsOfInformers(t, username, begin)
			g.Expect(reader.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))).To(Succeed())
			g.Expect(o.state(name).Scopes).To(HaveLen(1))
			if n > 0 {
				g.Expect(requestsOfInformers(t, username, begin)).To(Equal(before), "%s needs no request", name)
			}
		}
		requests := requestsOfInformers(t, username, begin)
		g.Expect(countOf(requests, "stream")).To(Equal(1), "%v", requests)
		g.Expect(countOf(requests, "review")).To(BeNumerically("<=", 2), "%v", requests)
	}
	g.Eventually(func() int { return watchesOf(t, "configmaps", ns) }).WithTimeout(patience).Should(Equal(users))
	caches := map[string]int{}
	for user := range users {
		for _, name := range names(user) {
			caches[o.state(name).SharedCache]++
		}
	}
	g.Expect(caches).To(And(HaveLen(users), HaveEach(each), Not(HaveKey(""))))
	g.Expect(series(t)).To(And(HaveKeyWithValue("latchkey_caches", float64(users)),
		HaveKeyWithValue("latchkey_cache_users", float64(users*each))))
	unread := fmt.Sprintf("unread-%s", ns)
	sibling := extension(ns, names(0)[0])
	sibling.SetName(unread)
	create(t, sibling)
	g.Expect(o.waitConnected(t, unread).Scopes).To(BeEmpty(), "what siblings read is not shown")
}

// What a connection wrote is in its first cached read, although a sibling's informer was there
// before and may not have it yet.
func TestSiblingsReadTheirOwnWrites(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	first := "first-" + ns
	siblings(t, ns, first)
	o := startOperator(t, clustercache.Options{
		Client: clustercache.ClientOptions{Cache: clustercache.ClientCacheOptions{ReadYourWrites: true}},
	})
	o.waitConnected(t, first)
	reader, err := o.GetReader(t.Context(), key(first))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(reader.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))).To(Succeed())
	for n := range 10 {
		name := fmt.Sprintf("writer-%d-%s", n, ns)
		siblings(t, ns, first, first, name)
		o.waitConnected(t, name)
		c, err := o.GetClient(t.Context(), key(name))
		g.Expect(err).NotTo(HaveOccurred())
		written := configMap(ns, fmt.Sprint("written-", n))
		g.Expect(c.Create(t.Context(), written)).To(Succeed())
		g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(written), &corev1.ConfigMap{})).To(Succeed())
	}
	g.Expect(watchesOf(t, "configmaps", ns)).To(Equal(1))
}

// An extension that indexes a field has a cache of its own from then on. What it got before goes
// on, and so do its siblings.
func TestSiblingWithAnIndex(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	names := []string{"plain-" + ns, "indexed-" + ns}
	siblings(t, ns, names[0], names...)
	o := startOperator(t, clustercache.Options{})
	whole := map[string]cluster.Cluster{}
	for _, name := range names {
		o.waitConnected(t, name)
		c, err := o.GetCluster(t.Context(), key(name))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.GetCache().List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))).To(Succeed())
		whole[name] = c
	}
	hold := func(name string) *scopedcache.Handle {
		handle, err := whole[name].GetCache().(scopedcache.Cache).Hold(t.Context(), &corev1.ConfigMap{},
			scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{Name: "test"})
		g.Expect(err).NotTo(HaveOccurred())
		return handle
	}
	g.Expect(o.state(names[1]).SharedCache).To(And(Not(BeEmpty()), Equal(o.state(names[0]).SharedCache)))
	before := hold(names[1])
	g.Expect(whole[names[1]].GetFieldIndexer().IndexField(t.Context(), &corev1.ConfigMap{}, "color",
		func(object client.Object) []string { return []string{object.GetLabels()["color"]} })).To(Succeed())
	red := configMap(ns, "red")
	red.Labels = map[string]string{"color": "red"}
	create(t, red)
	byColor := func(name string) (found int, err error) {
		list := &corev1.ConfigMapList{}
		err = whole[name].GetCache().List(t.Context(), list, client.InNamespace(ns), client.MatchingFields{"color": "red"})
		return len(list.Items), err
	}
	g.Eventually(func() (int, error) { return byColor(names[1]) }).WithTimeout(patience).Should(Equal(1))
	_, err := byColor(names[0])
	g.Expect(err).To(HaveOccurred(), "another extension's index")
	for _, handle := range []*scopedcache.Handle{before, hold(names[0]), hold(names[1])} {
		g.Eventually(func() error {
			return handle.Get(t.Context(), client.ObjectKeyFromObject(red), &corev1.ConfigMap{})
		}).WithTimeout(patience).Should(Succeed())
	}
	g.Expect(o.state(names[1]).Scopes).To(HaveLen(1), "that of before is the same as its own")
	g.Expect(o.state(names[0]).Scopes).To(HaveLen(1))
	g.Expect(o.state(names[1]).SharedCache).To(BeEmpty())
	g.Expect(o.state(names[0]).SharedCache).NotTo(BeEmpty())
	g.Expect(watchesOf(t, "configmaps", ns)).To(Equal(2))

	g.Expect(admin.Delete(t.Context(), extension(ns, names[1]))).To(Succeed())
	g.Eventually(o.known(names[1])).WithTimeout(patience).Should(BeFalse())
	g.Expect(before.List(t.Context(), &corev1.ConfigMapList{})).To(MatchError(clustercache.ErrNotConnected))
	g.Expect(whole[names[0]].GetCache().List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))).To(Succeed())
}

// A ServiceAccount that is deleted and created again under many extensions, of which one has a
// handler that hangs: all the others connect anew, and read, without waiting for that one. What
// they had before fails for ever, and one informer serves them again.
func TestServiceAccountIsRecreatedUnderMany(t *testing.T) {
	g := NewWithT(t)
	ns, many := namespace(t), testenv.Long(60, 200)
	names, objects := []string{"hung-" + ns}, []client.Object{}
	account := names[0]
	siblings(t, ns, account, account)
	for n := range many - 1 {
		sibling := extension(ns, account)
		sibling.SetName(fmt.Sprintf("s%03d-%s", n, ns))
		names, objects = append(names, sibling.GetName()), append(objects, sibling)
	}
	createMany(t, objects)
	o := startOperator(t, clustercache.Options{Cache: clustercache.CacheOptions{AccessReviewInterval: time.Hour}})
	hang, hangs := make(chan struct{}), make(chan struct{})
	defer close(hang)
	before := map[string]client.Reader{}
	epochs := map[string]int64{}
	for _, name := range names {
		epochs[name] = o.waitConnected(t, name).Epoch
		reader, err := o.GetReader(t.Context(), key(name))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(reader.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))).To(Succeed())
		before[name] = reader
	}
	whole, err := o.GetCluster(t.Context(), key(names[0]))
	g.Expect(err).NotTo(HaveOccurred())
	informer, err := whole.GetCache().(scopedcache.Cache).Hold(t.Context(), &corev1.ConfigMap{},
		scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{Name: "test"})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		if object.(client.Object).GetName() == "hang" {
			close(hangs)
			<-hang
		}
	}})
	g.Expect(err).NotTo(HaveOccurred())
	create(t, configMap(ns, "hang"))
	g.Eventually(hangs).WithTimeout(patience).Should(BeClosed())

	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, account))).To(Succeed())
	g.Expect(admin.Create(t.Context(), serviceAccount(ns, account))).To(Succeed())
	start := time.Now()
	for _, name := range names[1:] {
		g.Eventually(func() int64 { return o.state(name).Epoch }).WithTimeout(patience).
			Should(BeNumerically(">", epochs[name]))
		o.waitConnected(t, name)
		reader, err := o.GetReader(t.Context(), key(name))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(reader.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))).To(Succeed())
	}
	t.Logf("%d extensions read as the new ServiceAccount after %s", many-1, time.Since(start).Round(time.Millisecond))
	for _, name := range names {
		g.Eventually(func() error { return before[name].List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns)) }).
			WithTimeout(patience).Should(MatchError(clustercache.ErrNotConnected), name)
	}
	g.Eventually(func() int { return watchesOf(t, "configmaps", ns) }).WithTimeout(patience).Should(Equal(1))
}
