package scopedcache_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// usage is what the process uses after garbage collection.
type usage struct {
	heap, stacks float64
	goroutines   map[string]int // by the function that started them
}

var startedBy = regexp.MustCompile(`(?m)^created by (\S+)`)

func measure() usage {
	for range 8 { // later rounds free what finalizers and pools hold, and shrink stacks further
		runtime.GC()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	result := usage{heap: float64(stats.HeapAlloc), stacks: float64(stats.StackInuse), goroutines: map[string]int{}}
	var dump bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&dump, 2) // a bytes.Buffer does not fail
	for _, match := range startedBy.FindAllSubmatch(dump.Bytes(), -1) {
		result.goroutines[string(match[1])]++
	}
	return result
}

// newCaches returns a function that starts caches of one identity, which share one HTTP client.
func newCaches(t testing.TB) func(context.Context) (scopedcache.Cache, <-chan struct{}) {
	g := NewWithT(t)
	u := newUser(t)
	u.grant(t, "", "configmaps", "list", "watch")
	config := rest.CopyConfig(u.config)
	config.WrapTransport = nil // the counter of requests is part of the test
	httpClient, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	mapper, err := apiutil.NewDynamicRESTMapper(config, httpClient)
	g.Expect(err).NotTo(HaveOccurred())
	return func(ctx context.Context) (scopedcache.Cache, <-chan struct{}) {
		c, err := scopedcache.NewWithOptions(scopedcache.Options{AccessReviewInterval: endlessInterval})(config,
			cache.Options{HTTPClient: httpClient, Mapper: mapper})
		g.Expect(err).NotTo(HaveOccurred())
		ended := runInBackground(func() { _ = c.Start(ctx) })
		g.Expect(c.WaitForCacheSync(ctx)).To(BeTrue())
		return c.(scopedcache.Cache), ended
	}
}

// TestFewGoroutines checks that an informer that waits for events has the four goroutines that
// client-go and net/http need, and none of ours.
func TestFewGoroutines(t *testing.T) {
	const caches, each = 2, 40
	g := NewWithT(t)
	cost, goroutines := costOfInformers(g, caches, each, &corev1.ConfigMap{}, false, newCaches(t))
	g.Expect(goroutines/caches/each).To(BeNumerically("<=", 4.2), "few that are not of informers: %v", cost.goroutines)
}

// BenchmarkEmptyInformer measures what an informer costs before its first object: heap, stacks and
// goroutines, and where the goroutines start. 50 caches have 20 informers each, in namespaces
// without ConfigMaps, at first and after a ConfigMap of 100 KiB came and went in each. Each
// informer has the handler that a controller has. The cost of the first informer of a cache, which
// makes clients, is included.
func BenchmarkEmptyInformer(b *testing.B) {
	const caches, each = 50, 20
	g := NewWithT(b)
	start := newCaches(b)
	for b.Loop() {
		for _, kind := range []struct {
			name   string
			object client.Object
		}{{"typed", &corev1.ConfigMap{}}, {"metadata", metadataConfigMap()}} {
			cost, goroutines := costOfInformers(g, caches, each, kind.object, false, start)
			b.ReportMetric(cost.heap/caches/each, "heap-B/"+kind.name)
			b.ReportMetric(cost.stacks/caches/each, "stack-B/"+kind.name)
			b.ReportMetric(goroutines/caches/each, "goroutines/"+kind.name)
			used, _ := costOfInformers(g, caches, each, kind.object, true, start)
			b.ReportMetric(used.heap/caches/each, "heap-B/"+kind.name+"-after-events")
			b.ReportMetric(used.stacks/caches/each, "stack-B/"+kind.name+"-after-events")
			for _, name := range slices.Sorted(maps.Keys(cost.goroutines)) {
				if n := float64(cost.goroutines[name]) / caches / each; n >= .1 {
					b.Logf("%s: %.2f goroutines per informer started by %s", kind.name, n, name)
				}
			}
		}
	}
}

// costOfInformers returns what informers in so many caches, and so many namespaces each, use; with
// events, after an object came and went in each namespace.
func costOfInformers(g Gomega, caches, each int, object client.Object, events bool,
	start func(context.Context) (scopedcache.Cache, <-chan struct{})) (cost usage, goroutines float64) {
	ctx, cancel := context.WithCancel(context.Background())
	var all []scopedcache.Cache
	var ended []<-chan struct{}
	defer func() {
		cancel()
		for _, end := range ended {
			<-end
		}
	}()
	for range caches {
		c, end := start(ctx)
		all, ended = append(all, c), append(ended, end)
	}
	var deleted atomic.Int64
	before := measure()
	for _, c := range all {
		var synced []<-chan struct{}
		for n := range each {
			handle, err := c.Hold(ctx, object, scopedcache.Scope{Namespace: fmt.Sprintf("empty-%d", n)},
				scopedcache.HoldOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			registration, err := handle.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				DeleteFunc: func(any) { deleted.Add(1) }})
			g.Expect(err).NotTo(HaveOccurred())
			synced = append(synced, registration.HasSyncedChecker().Done())
		}
		for _, done := range synced {
			<-done
		}
	}
	if events {
		comeAndGo(g, each)
		g.Eventually(deleted.Load).WithTimeout(patience).Should(BeEquivalentTo(caches * each))
	}
	after := measure()
	cost = usage{heap: after.heap - before.heap, stacks: after.stacks - before.stacks, goroutines: map[string]int{}}
	for name, n := range after.goroutines {
		if added := n - before.goroutines[name]; added > 0 {
			cost.goroutines[name] = added
			goroutines += float64(added)
		}
	}
	return cost, goroutines
}

// comeAndGo creates and deletes a ConfigMap of 100 KiB in so many namespaces.
func comeAndGo(g Gomega, namespaces int) {
	for n := range namespaces {
		name := fmt.Sprintf("empty-%d", n)
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		g.Expect(client.IgnoreAlreadyExists(admin.Create(context.Background(), namespace))).To(Succeed())
		object := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "comes-and-goes"},
			Data:       map[string]string{"text": strings.Repeat("x", 100<<10)},
		}
		g.Expect(admin.Create(context.Background(), object)).To(Succeed())
		g.Expect(admin.Delete(context.Background(), object)).To(Succeed())
	}
}

func metadataConfigMap() client.Object {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	return object
}
