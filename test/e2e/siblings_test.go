package e2e

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/scopedcache"
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
	unread := fmt.Sprintf("unread-%s", ns)
	sibling := extension(ns, names(0)[0])
	sibling.SetName(unread)
	create(t, sibling)
	g.Expect(o.waitConnected(t, unread).Scopes).To(BeEmpty(), "what siblings read is not shown")
}

// received records what a handler is called for.
type received struct {
	mu     sync.Mutex
	events []string
}

func (r *received) add(event string, object any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name := object.(client.Object).GetName(); strings.HasPrefix(name, "made-") {
		r.events = append(r.events, event+" "+name)
	}
}

func (r *received) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// However an extension ends that sends the requests of its siblings' informers, the informers go on
// as another one: without a list, without a gap, and with no event twice. Nothing is sent on behalf
// of an extension that has ended.
func TestCarrierLeaves(t *testing.T) {
	g := NewWithT(t)
	ns, begin := namespace(t), time.Now()
	names := []string{"a-" + ns, "b-" + ns, "c-" + ns, "d-" + ns, "last-" + ns}
	username := "system:serviceaccount:" + ns + ":" + names[0]
	siblings(t, ns, names[0], names...)
	tenant(t, ns, "another-"+ns)
	o := startOperator(t, clustercache.Options{
		Filter: func(object client.Object) bool { return object.GetLabels()["ignored"] == "" },
	})
	receivers := map[string]*received{}
	for _, name := range names {
		o.waitConnected(t, name)
		whole, err := o.GetCluster(t.Context(), key(name))
		g.Expect(err).NotTo(HaveOccurred())
		informer, err := whole.GetCache().(scopedcache.Cache).Hold(t.Context(), &corev1.ConfigMap{},
			scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{Name: "test"})
		g.Expect(err).NotTo(HaveOccurred())
		r := &received{}
		receivers[name] = r
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { r.add("add", object) },
			UpdateFunc: func(_, object any) { r.add("update", object) },
			DeleteFunc: func(object any) { r.add("delete", object) },
		})
		g.Expect(err).NotTo(HaveOccurred())
	}
	made, ended := []string{}, map[string]time.Time{}
	makeOne := func() {
		name := fmt.Sprintf("made-%d", len(made))
		g.Expect(admin.Create(t.Context(), configMap(ns, name))).To(Succeed())
		made = append(made, "add "+name)
	}
	carrier := func() string {
		requests := requestsOfInformers(t, username, begin)
		_, name, _ := strings.Cut(requests[len(requests)-1], " as ")
		return name
	}
	change := func(name string, f func(*unstructured.Unstructured)) {
		object := extension(ns, name)
		g.Expect(admin.Get(t.Context(), key(name), object)).To(Succeed())
		f(object)
		g.Expect(admin.Update(t.Context(), object)).To(Succeed())
	}
	for way, end := range []func(name string){
		func(name string) { g.Expect(admin.Delete(t.Context(), extension(ns, name))).To(Succeed()) },
		func(name string) {
			change(name, func(e *unstructured.Unstructured) { e.SetLabels(map[string]string{"ignored": "true"}) })
		},
		func(name string) {
			change(name, func(e *unstructured.Unstructured) {
				g.Expect(unstructured.SetNestedField(e.Object, "another-"+ns, "spec", "serviceAccount", "name")).To(Succeed())
			})
		},
		func(name string) {
			change(name, func(e *unstructured.Unstructured) {
				g.Expect(unstructured.SetNestedField(e.Object, "none-"+ns, "spec", "serviceAccount", "name")).To(Succeed())
			})
		},
	} {
		makeOne()
		leaves := carrier()
		g.Eventually(receivers[leaves].all).WithTimeout(patience).Should(Equal(made))
		reader, err := o.GetReader(t.Context(), key(leaves))
		g.Expect(err).NotTo(HaveOccurred())
		end(leaves)
		g.Eventually(func() error {
			return reader.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))
		}).WithTimeout(patience).Should(MatchError(clustercache.ErrNotConnected), "way %d", way)
		ended[leaves] = time.Now()
		count := len(receivers[leaves].all())
		makeOne()
		for _, name := range names {
			if _, gone := ended[name]; gone {
				continue
			}
			g.Eventually(receivers[name].all).WithTimeout(patience).Should(Equal(made), func() string {
				return fmt.Sprintf("%s, way %d: %v", name, way, requestsOfInformers(t, username, begin))
			})
		}
		g.Expect(receivers[leaves].all()).To(HaveLen(count), "%s has ended", leaves)
		g.Expect(carrier()).NotTo(Equal(leaves))
	}
	requests := requestsOfInformers(t, username, begin)
	g.Expect(countOf(requests, "stream")+countOf(requests, "list")).To(Equal(1), "%v", requests)
	g.Expect(countOf(requests, "watch")).To(Equal(4), "one for each hand-over: %v", requests)
	for _, event := range auditLog(t, begin) {
		_, name, _ := strings.Cut(event.UserAgent, "extension/")
		if end, gone := ended[name]; gone && event.User.Username == username && event.RequestReceivedTimestamp.After(end) {
			t.Errorf("sent after the end of %s: %s", name, event)
		}
	}
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
	g.Expect(o.state(names[1]).Scopes).To(HaveLen(2), "that of before, and its own")
	g.Expect(o.state(names[0]).Scopes).To(HaveLen(1))
	g.Expect(watchesOf(t, "configmaps", ns)).To(Equal(2))

	g.Expect(admin.Delete(t.Context(), extension(ns, names[1]))).To(Succeed())
	g.Eventually(o.known(names[1])).WithTimeout(patience).Should(BeFalse())
	g.Expect(before.List(t.Context(), &corev1.ConfigMapList{})).To(MatchError(clustercache.ErrNotConnected))
	g.Expect(whole[names[0]].GetCache().List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))).To(Succeed())
}
