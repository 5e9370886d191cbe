package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// received records what a handler is called for. A call waits for the end of hang, if it is set.
type received struct {
	hang   atomic.Pointer[chan struct{}]
	mu     sync.Mutex
	events []string // guarded by mu
}

func (r *received) add(event string, object any) {
	if hang := r.hang.Load(); hang != nil {
		<-*hang
	}
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

// carried are extensions of one ServiceAccount, whose handlers share an informer of ConfigMaps.
type carried struct {
	*testing.T
	*WithT
	o         *operator
	namespace string
	username  string
	begin     time.Time
	names     []string
	receivers map[string]*received
	made      []string             // the events of what was made
	ended     map[string]time.Time // by name
}

// hold adds a handler for each extension.
func hold(t *testing.T, o *operator, namespace, username string, begin time.Time, names []string) *carried {
	c := &carried{
		T:         t,
		WithT:     NewWithT(t),
		o:         o,
		namespace: namespace,
		username:  username,
		begin:     begin,
		names:     names,
		receivers: map[string]*received{},
		ended:     map[string]time.Time{},
	}
	for _, name := range names {
		o.waitConnected(t, name)
		whole, err := o.GetCluster(t.Context(), key(name))
		c.Expect(err).NotTo(HaveOccurred())
		informer, err := whole.GetCache().(scopedcache.Cache).Hold(t.Context(), &corev1.ConfigMap{},
			scopedcache.Scope{Namespace: namespace}, scopedcache.HoldOptions{Name: "test"})
		c.Expect(err).NotTo(HaveOccurred())
		r := &received{}
		c.receivers[name] = r
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { r.add("add", object) },
			UpdateFunc: func(_, object any) { r.add("update", object) },
			DeleteFunc: func(object any) { r.add("delete", object) },
		})
		c.Expect(err).NotTo(HaveOccurred())
	}
	return c
}

func (c *carried) makeOne() {
	name := fmt.Sprintf("made-%d", len(c.made))
	c.Expect(admin.Create(c.Context(), configMap(c.namespace, name))).To(Succeed())
	c.made = append(c.made, "add "+name)
}

// carrier returns the extension that sent the latest request of the informer.
func (c *carried) carrier() string {
	requests := requestsOfInformers(c.T, c.username, c.begin)
	_, name, _ := strings.Cut(requests[len(requests)-1], " as ")
	return name
}

// change changes an extension.
func (c *carried) change(name string, f func(*unstructured.Unstructured)) {
	object := extension(c.namespace, name)
	c.Expect(admin.Get(c.Context(), key(name), object)).To(Succeed())
	f(object)
	c.Expect(admin.Update(c.Context(), object)).To(Succeed())
}

// leaves ends the carrier, and checks that its siblings notice nothing.
func (c *carried) leaves(way string, end func(name string)) {
	c.makeOne()
	leaves := c.carrier()
	c.Eventually(c.receivers[leaves].all).WithTimeout(patience).Should(Equal(c.made), way)
	reader, err := c.o.GetReader(c.Context(), key(leaves))
	c.Expect(err).NotTo(HaveOccurred())
	end(leaves)
	c.Eventually(func() error {
		return reader.List(c.Context(), &corev1.ConfigMapList{}, client.InNamespace(c.namespace))
	}).WithTimeout(patience).Should(MatchError(clustercache.ErrNotConnected), way)
	c.ended[leaves] = time.Now()
	count := len(c.receivers[leaves].all())
	c.makeOne()
	for _, name := range c.names {
		if _, gone := c.ended[name]; gone {
			continue
		}
		c.Eventually(c.receivers[name].all).WithTimeout(patience).Should(Equal(c.made), func() string {
			return fmt.Sprintf("%s, %s: %v", name, way, requestsOfInformers(c.T, c.username, c.begin))
		})
	}
	c.Expect(c.receivers[leaves].all()).To(HaveLen(count), "%s has ended: %s", leaves, way)
	c.Expect(c.carrier()).NotTo(Equal(leaves), way)
}

// expectHandOvers checks that each carrier that ended caused one watch and no list, and sent
// nothing after its end.
func (c *carried) expectHandOvers() {
	requests := requestsOfInformers(c.T, c.username, c.begin)
	c.Expect(countOf(requests, "stream")+countOf(requests, "list")).To(Equal(1), "%v", requests)
	c.Expect(countOf(requests, "watch")).To(Equal(len(c.ended)), "one for each hand-over: %v", requests)
	for _, event := range auditLog(c.T, c.begin) {
		_, name, _ := strings.Cut(event.UserAgent, "extension/")
		if end, gone := c.ended[name]; gone && event.User.Username == c.username &&
			event.RequestReceivedTimestamp.After(end) {
			c.Errorf("sent after the end of %s: %s", name, event)
		}
	}
}

// However an extension ends that sends the requests of its siblings' informers, the informers go on
// as another one: without a list, without a gap, and with no event twice. Nothing is sent on behalf
// of an extension that has ended.
func TestCarrierLeaves(t *testing.T) {
	ns, begin := namespace(t), time.Now()
	names := []string{"a-" + ns, "b-" + ns, "c-" + ns, "d-" + ns, "last-" + ns}
	siblings(t, ns, names[0], names...)
	tenant(t, ns, "another-"+ns)
	o := startOperator(t, clustercache.Options{
		Filter: func(object client.Object) bool { return object.GetLabels()["ignored"] == "" },
	})
	c := hold(t, o, ns, "system:serviceaccount:"+ns+":"+names[0], begin, names)
	c.leaves("deleted", func(name string) {
		c.Expect(admin.Delete(t.Context(), extension(ns, name))).To(Succeed())
	})
	c.leaves("filtered", func(name string) {
		c.change(name, func(e *unstructured.Unstructured) { e.SetLabels(map[string]string{"ignored": "true"}) })
	})
	for _, account := range []string{"another-" + ns, "none-" + ns} {
		c.leaves("names "+account, func(name string) {
			c.change(name, func(e *unstructured.Unstructured) {
				c.Expect(unstructured.SetNestedField(e.Object, account, "spec", "serviceAccount", "name")).To(Succeed())
			})
		})
	}
	c.expectHandOvers()
}

// The same for ways to end in which the extension stays: the API server rejects its requests, and
// only its; the replica gives it up; its lease ends; and for an end during which its handler hangs.
func TestCarrierMayActNoMore(t *testing.T) {
	g := NewWithT(t)
	ns, begin := namespace(t), time.Now()
	names := []string{"a-" + ns, "b-" + ns, "c-" + ns, "d-" + ns, "last-" + ns}
	siblings(t, ns, names[0], names...)
	proxy := newFaults(t)
	config, _ := proxy.operatorConfig(t)
	var rejected atomic.Pointer[string]
	proxy.answer.Store(new(func(req *http.Request) int {
		if name := rejected.Load(); name != nil && strings.HasSuffix(req.UserAgent(), "extension/"+*name) {
			return http.StatusUnauthorized
		}
		return 0
	}))
	engine, leases := newHandEngine(nil), map[string]*testutil.Lease{}
	engine.alone = map[string]*fence.Fence{}
	for _, name := range names {
		leases[name], engine.alone[name] = testutil.NewLease()
		leases[name].Renew(3600)
		defer leases[name].Release()
	}
	o := newOperatorAt(t, config, clustercache.Options{
		Ownership:     engine,
		AllowIdentity: clustercache.GuardedByAdmission,
	})
	o.also = append(o.also, proxy.quiet)
	o.start(t)
	replica := <-engine.running
	for _, name := range names {
		g.Expect(replica.Take(t.Context(), engine.set(name, true))).To(Succeed())
	}
	c := hold(t, o, ns, "system:serviceaccount:"+ns+":"+names[0], begin, names)
	hang := make(chan struct{})
	defer close(hang)
	c.leaves("rejected", func(name string) {
		uncached, err := o.GetUncachedClient(t.Context(), key(name))
		g.Expect(err).NotTo(HaveOccurred())
		rejected.Store(&name)
		g.Expect(uncached.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "made-0"}, &corev1.ConfigMap{})).
			NotTo(Succeed())
	})
	c.leaves("given up", func(name string) {
		g.Expect(replica.GiveUp(t.Context(), engine.set(name, false))).To(Succeed())
	})
	c.leaves("lease ended", func(name string) { leases[name].Release() })
	c.leaves("deleted while its handler hangs", func(name string) {
		c.receivers[name].hang.Store(&hang)
		c.makeOne()
		g.Expect(admin.Delete(t.Context(), extension(ns, name))).To(Succeed())
	})
	c.expectHandOvers()
}

// A handler of the carrier that panics loses its event, and no other: the informer goes on for it
// and for its siblings, with the same watch.
func TestCarrierPanics(t *testing.T) {
	g := NewWithT(t)
	ns, begin := namespace(t), time.Now()
	names := []string{"a-" + ns, "b-" + ns}
	siblings(t, ns, names[0], names...)
	o := startOperator(t, clustercache.Options{})
	var panicked atomic.Int32
	controllers := map[string]*fakeController{}
	for _, name := range names {
		o.waitConnected(t, name)
		c := newFakeController(t)
		controllers[name] = c
		watch := c.watch("content", &corev1.ConfigMap{}, ns)
		if name == names[0] {
			watch.EventHandler = handler.Funcs{
				CreateFunc: func(_ context.Context, e event.CreateEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
					if strings.HasPrefix(e.Object.GetName(), "made-") {
						panicked.Add(1)
						panic("of a handler, in a test")
					}
				},
			}
		}
		g.Expect(o.Watch(t.Context(), key(name), clustercache.NewWatcher(watch))).To(Succeed())
	}
	createConfigMaps(t, ns, "made-0", "made-1", "made-2")
	g.Eventually(controllers[names[1]].seen).WithTimeout(patience).
		Should(ContainElements("create made-0", "create made-1", "create made-2"))
	g.Eventually(panicked.Load).WithTimeout(patience).Should(Equal(int32(3)))
	requests := requestsOfInformers(t, "system:serviceaccount:"+ns+":"+names[0], begin)
	g.Expect(countOf(requests, "stream")+countOf(requests, "list")).To(Equal(1), "%v", requests)
	g.Expect(countOf(requests, "watch")).To(BeZero(), "%v", requests)
	for _, c := range controllers {
		c.close()
	}
}
