package scopedcache_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	corev1 "k8s.io/api/core/v1"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// rivals are the caches that are measured beside each other, in one run and by turns, so that what
// the machine does else concerns both.
var rivals = [2]struct {
	name string
	new  cache.NewCacheFunc
}{
	{"scopedcache", scopedcache.New},
	{"controller-runtime", cache.New},
}

// ring is where rivals are measured: a namespace with 100 ConfigMaps, which a user may read
// everywhere.
type ring struct {
	namespace  string
	config     *rest.Config
	httpClient *http.Client
	mapper     meta.RESTMapper
}

func newRing(b *testing.B) ring {
	b.Helper()
	g := NewWithT(b)
	r := ring{namespace: namespace(b)}
	u := newUser(b)
	u.grant(b, "", "configmaps", "list", "watch")
	for i := range 100 {
		object := configMap(r.namespace, fmt.Sprintf("object-%d", i))
		object.Data = map[string]string{"content": "some of it"}
		create(b, object)
	}
	r.config = rest.CopyConfig(u.config)
	var err error
	r.httpClient, err = rest.HTTPClientFor(r.config)
	g.Expect(err).NotTo(HaveOccurred())
	r.mapper, err = apiutil.NewDynamicRESTMapper(r.config, r.httpClient)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = r.mapper.RESTMapping(corev1.SchemeGroupVersion.WithKind("ConfigMap").GroupKind())
	g.Expect(err).NotTo(HaveOccurred())
	return r
}

// start starts a cache, which is stopped by stop.
func (r ring) start(b *testing.B, newCache cache.NewCacheFunc) (_ cache.Cache, stop func()) {
	b.Helper()
	made, err := newCache(r.config, cache.Options{HTTPClient: r.httpClient, Mapper: r.mapper})
	NewWithT(b).Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := ending(func() { _ = made.Start(ctx) })
	NewWithT(b).Expect(made.WaitForCacheSync(ctx)).To(BeTrue())
	return made, func() {
		cancel()
		<-ended
	}
}

// ending runs f and tells when it has ended.
func ending(f func()) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	return ended
}

// The first cached read of a kind: from nothing to 100 objects.
func BenchmarkFirstRead(b *testing.B) {
	r := newRing(b)
	took := map[string][]time.Duration{}
	for range 25 {
		for _, rival := range rivals {
			c, stop := r.start(b, rival.new)
			begun := time.Now()
			list := &corev1.ConfigMapList{}
			if err := c.List(b.Context(), list, client.InNamespace(r.namespace)); err != nil || len(list.Items) != 100 {
				b.Fatalf("read %d objects, %v", len(list.Items), err)
			}
			took[rival.name] = append(took[rival.name], time.Since(begun))
			stop()
		}
	}
	ours, theirs := median(took[rivals[0].name]), median(took[rivals[1].name])
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(ours.Microseconds())/1000, "ms/ours")
	b.ReportMetric(float64(theirs.Microseconds())/1000, "ms/theirs")
	b.ReportMetric(float64(theirs)/float64(ours), "times-quicker")
	if theirs < 5*ours {
		b.Errorf("the first read took %s here and %s there: less than 5 times quicker", ours, theirs)
	}
}

// Warm reads: Get of one object and List of 100.
func BenchmarkWarmReads(b *testing.B) {
	r := newRing(b)
	reads := map[string]func(client.Reader) error{
		"Get": func(c client.Reader) error {
			return c.Get(context.Background(), client.ObjectKey{Namespace: r.namespace, Name: "object-1"},
				&corev1.ConfigMap{})
		},
		"List": func(c client.Reader) error {
			return c.List(context.Background(), &corev1.ConfigMapList{}, client.InNamespace(r.namespace))
		},
	}
	// warm starts both with an informer of all namespaces, as an operator has it.
	warm := func() (caches [2]cache.Cache, stop func()) {
		var stops []func()
		for i, rival := range rivals {
			c, stop := r.start(b, rival.new)
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
			for range pairs { // where in memory a cache happens to lie makes a difference of some percent
				caches, stop := warm()
				var ratios []float64
				for round := range rounds {
					var took [2]time.Duration
					for turn := range 2 {
						i := (turn + round) % 2 // who is first has it harder, or easier
						begun := time.Now()
						for range map[string]int{"Get": 2000, "List": 20}[name] {
							if err := read(caches[i]); err != nil {
								b.Fatal(err)
							}
						}
						took[i] = time.Since(begun)
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
				b.Errorf("%s has %.3f times the throughput of controller-runtime's cache", name, ratio)
			}
		})
	}
}

func median(of []time.Duration) time.Duration {
	slices.Sort(of)
	return of[len(of)/2]
}
