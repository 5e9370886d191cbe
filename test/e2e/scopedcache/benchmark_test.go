package scopedcache_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// rivals are the caches that the benchmarks compare. The benchmarks measure them alternately in one
// run, so that other load on the machine affects both.
var rivals = [2]struct {
	name string
	new  cache.NewCacheFunc
}{
	{"scopedcache", scopedcache.New},
	{"controller-runtime", cache.New},
}

// benchmarkEnv is the environment in which the rivals are measured: a namespace with 100
// ConfigMaps, and a user with permission to list and watch ConfigMaps in all namespaces.
type benchmarkEnv struct {
	namespace  string
	config     *rest.Config
	httpClient *http.Client
	mapper     meta.RESTMapper
}

func newBenchmarkEnv(b *testing.B) benchmarkEnv {
	b.Helper()
	g := NewWithT(b)
	env := benchmarkEnv{namespace: createNamespace(b)}
	u := newUser(b)
	u.grant(b, "", "configmaps", "list", "watch")
	for i := range 100 {
		object := configMap(env.namespace, fmt.Sprintf("object-%d", i))
		object.Data = map[string]string{"content": "some content"}
		create(b, object)
	}
	env.config = rest.CopyConfig(u.config)
	var err error
	env.httpClient, err = rest.HTTPClientFor(env.config)
	g.Expect(err).NotTo(HaveOccurred())
	env.mapper, err = apiutil.NewDynamicRESTMapper(env.config, env.httpClient)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = env.mapper.RESTMapping(corev1.SchemeGroupVersion.WithKind("ConfigMap").GroupKind())
	g.Expect(err).NotTo(HaveOccurred())
	return env
}

// start starts a cache. The returned function stops it and waits until it has ended.
func (env benchmarkEnv) start(b *testing.B, newCache cache.NewCacheFunc) (_ cache.Cache, stop func()) {
	b.Helper()
	created, err := newCache(env.config, cache.Options{HTTPClient: env.httpClient, Mapper: env.mapper})
	NewWithT(b).Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := runInBackground(func() { _ = created.Start(ctx) })
	NewWithT(b).Expect(created.WaitForCacheSync(ctx)).To(BeTrue())
	return created, func() {
		cancel()
		<-ended
	}
}

// runInBackground runs f in a goroutine and returns a channel that is closed when f has returned.
func runInBackground(f func()) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	return ended
}

// BenchmarkFirstRead measures the first cached read of a kind, which returns 100 objects.
func BenchmarkFirstRead(b *testing.B) {
	env := newBenchmarkEnv(b)
	took := map[string][]time.Duration{}
	for range 25 {
		for _, rival := range rivals {
			c, stop := env.start(b, rival.new)
			started := time.Now()
			list := &corev1.ConfigMapList{}
			if err := c.List(b.Context(), list, client.InNamespace(env.namespace)); err != nil || len(list.Items) != 100 {
				b.Fatalf("read %d objects, %v", len(list.Items), err)
			}
			took[rival.name] = append(took[rival.name], time.Since(started))
			stop()
		}
	}
	ours, theirs := median(took[rivals[0].name]), median(took[rivals[1].name])
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(ours.Microseconds())/1000, "ms/ours")
	b.ReportMetric(float64(theirs.Microseconds())/1000, "ms/theirs")
	b.ReportMetric(float64(theirs)/float64(ours), "times-quicker")
	if theirs < 5*ours {
		b.Errorf("first read: scopedcache took %s, controller-runtime %s: less than 5 times faster", ours, theirs)
	}
}

// BenchmarkWarmReads measures reads of a synced cache: Get of one object, and List of 100 objects.
func BenchmarkWarmReads(b *testing.B) {
	env := newBenchmarkEnv(b)
	reads := map[string]func(client.Reader) error{
		"Get": func(c client.Reader) error {
			return c.Get(context.Background(), client.ObjectKey{Namespace: env.namespace, Name: "object-1"},
				&corev1.ConfigMap{})
		},
		"List": func(c client.Reader) error {
			return c.List(context.Background(), &corev1.ConfigMapList{}, client.InNamespace(env.namespace))
		},
	}
	// warm starts both caches with an informer of all namespaces, as an operator uses one.
	warm := func() (caches [2]cache.Cache, stop func()) {
		var stops []func()
		for i, rival := range rivals {
			c, stop := env.start(b, rival.new)
			if _, err := c.GetInformer(b.Context(), &corev1.ConfigMap{}); err != nil {
				b.Fatal(err)
			}
			caches[i], stops = c, append(stops, stop)
		}
		return caches, func() { stops[0](); stops[1]() }
	}
	caches, stop := warm()
	defer stop()
	for _, name := range []string{"Get", "List"} {
		read := reads[name]
		for i, rival := range rivals {
			b.Run(name+"/"+rival.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := read(caches[i]); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		b.Run(name+"/throughput", func(b *testing.B) {
			const pairs, rounds = 48, 25
			ratio := 0.
			for range pairs { // the memory layout of a cache changes the result by some percent
				caches, stop := warm()
				var ratios []float64
				for round := range rounds {
					var took [2]time.Duration
					for turn := range 2 {
						i := (turn + round) % 2 // alternate the order: being first may be slower or faster
						started := time.Now()
						for range map[string]int{"Get": 2000, "List": 20}[name] {
							if err := read(caches[i]); err != nil {
								b.Fatal(err)
							}
						}
						took[i] = time.Since(started)
					}
					ratios = append(ratios, float64(took[1])/float64(took[0]))
				}
				stop()
				slices.Sort(ratios)
				ratio += ratios[rounds/2] / pairs
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ratio, "of-theirs")
			if ratio < 0.95 {
				b.Errorf("%s: the throughput is %.3f times that of controller-runtime's cache, want at least 0.95", name, ratio)
			}
		})
	}
}

func median(durations []time.Duration) time.Duration {
	slices.Sort(durations)
	return durations[len(durations)/2]
}
